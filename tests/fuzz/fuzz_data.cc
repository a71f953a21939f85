// Headers of data messages, and the places of payloads that they name: from workers and servers.
#include "common/wire/codec.h"
#include "common/wire/local_link.h"
#include "tests/fuzz/said_again.h"

namespace tributary::fuzz::data {
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
  static const SharedMemory made = *SharedMemory::create(4096, "payloads", SharedMemory::Peers::kRead);
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

void run(std::span<const std::byte> bytes) {
  fuzz::must_say_again(bytes, decode, encode);
  if (const Result<Placed> placed = decode(bytes)) {
    const SharedMemory& shared = memory();
    if (const auto payload = payload_in(shared, placed->place)) {
      fuzz::require(payload->data() >= shared.data() && payload->size() == placed->place.bytes &&
                        payload->data() + payload->size() <= shared.data() + shared.size(),
                    "a payload lies in the memory that is shared");
    }
  }
}

Target target() {
  return {"data", seeds, run};
}

}  // namespace tributary::fuzz::data
