// Control messages: from any daemon.
#include "common/wire/codec.h"
#include "tests/fuzz/said_again.h"

namespace tributary::fuzz::control {

std::vector<Bytes> seeds() {
  return encoded(encode_control);
}

void run(std::span<const std::byte> bytes) {
  fuzz::must_say_again(bytes, decode_control, encode_control);
}

Target target() {
  return {"control", seeds, run};
}

}  // namespace tributary::fuzz::control
