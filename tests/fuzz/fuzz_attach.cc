// Attach messages: from trainers, and from the worker to them.
#include "common/wire/codec.h"
#include "tests/fuzz/said_again.h"

std::vector<tributary::fuzz::Bytes> tributary::fuzz::seeds() {
  return encoded(encode_attach);
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tributary;
  fuzz::must_say_again(fuzz::bytes_of(data, size), decode_attach, encode_attach);
  return 0;
}
