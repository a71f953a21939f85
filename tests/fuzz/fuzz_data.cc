// Headers of data messages, and the places of payloads that they name: from workers and servers.
#include "common/wire/codec.h"
#include "common/wire/local_link.h"
#include "tests/fuzz/said_again.h"

namespace tributary::fuzz {
namespace {

// A message with its place.
struct Placed {
  DataMessage message;
  PayloadPlace place;
};

Result<Placed> decode(std::span<const std::byte> bytes) {
  Placed placed;
  auto message = decode_data(bytes, &placed.place);
  if (!message) return tl::unexpected(message.error());
  placed.message = std::move(*message);
  return placed;
}

Bytes encode(const Placed& placed) {
  Bytes out(kMaxErrorHeader);
  out.resize(encode_data(placed.message, out, placed.place).size());
  return out;
}

const SharedMemory& memory() {
  static const SharedMemory made = *SharedMemory::create(4096, "payloads");
  return made;
}

}  // namespace

std::vector<Bytes> seeds() {
  testing::Random random(1);
  std::vector<Bytes> all;
  for (DataMessage& message : testing::one_of_each<DataMessage>(random)) {
    all.push_back(encode({message, {}}));
    all.push_back(encode({std::move(message), {1, 0, 64, 256, 7}}));
  }
  return all;
}

}  // namespace tributary::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tributary;
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::must_say_again(bytes, fuzz::decode, fuzz::encode);
  if (const Result<fuzz::Placed> placed = fuzz::decode(bytes)) {
    const SharedMemory& memory = fuzz::memory();
    if (const auto payload = payload_in(memory, placed->place)) {
      fuzz::require(payload->data() >= memory.data() && payload->size() == placed->place.bytes &&
                        payload->data() + payload->size() <= memory.data() + memory.size(),
                    "a payload lies in the memory that is shared");
    }
  }
  return 0;
}
