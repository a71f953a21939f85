// Attach messages: from trainers, and from the worker to them.
#include "common/wire/codec.h"
#include "tests/fuzz/said_again.h"

namespace tributary::fuzz::attach {

std::vector<Bytes> seeds() {
  return encoded(encode_attach);
}

void run(std::span<const std::byte> bytes) {
  fuzz::must_say_again(bytes, decode_attach, encode_attach);
}

Target target() {
  return {"attach", seeds, run};
}

}  // namespace tributary::fuzz::attach
