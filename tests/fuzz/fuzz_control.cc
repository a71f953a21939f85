// Control messages: from any daemon.
#include "common/wire/codec.h"
#include "tests/fuzz/said_again.h"

std::vector<tributary::fuzz::Bytes> tributary::fuzz::seeds() {
  return encoded(encode_control);
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tributary;
  fuzz::must_say_again(fuzz::bytes_of(data, size), decode_control, encode_control);
  return 0;
}
