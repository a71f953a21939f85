// No parser of ours: one that believes the length that an input begins with. That corpus_main.cc finds it is tested.
#include "tests/fuzz/fuzz_target.h"

std::vector<tributary::fuzz::Bytes> tributary::fuzz::seeds() {
  return {bytes_of("\4text")};
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tributary::fuzz::require(size == 0 || data[0] < size, "a length is that of what follows");
  return 0;
}
