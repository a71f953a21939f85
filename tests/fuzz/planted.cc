// A planted fault, no parser of ours: it trusts an input's length prefix. A test checks that corpus_main.cc finds it.
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::planted {

std::vector<Bytes> seeds() {
  return {bytes_of("\4text")};
}

void run(std::span<const std::byte> bytes) {
  require(bytes.empty() || std::to_integer<std::size_t>(bytes[0]) < bytes.size(), "a length is that of what follows");
}

Target target() {
  return {"planted", seeds, run};
}

}  // namespace tributary::fuzz::planted
