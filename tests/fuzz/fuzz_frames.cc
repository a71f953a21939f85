// Payloads: encoded values, from workers (pushes) and servers (answers).
#include <cstring>
#include <memory>

#include "common/math/encoding.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/sample_frame.h"

namespace tributary::fuzz::frames {
namespace {

constexpr std::string_view kEncodings[] = {"fp32",      "bf16",   "fp16",   "int8",
                                           "topk:0.01", "topk:1", "onebit", "int8-delta"};
constexpr std::size_t kMostElements = 2048;

// The input: which encoding, how many elements, at which alignment the frame lies, of which weight; and the frame,
// which gets the length that it must have, because a lane refuses every other one before it looks inside.
struct Head {
  std::uint8_t encoding = 0, alignment = 0;
  std::uint16_t elements = 0;
  std::uint64_t weight = 0;
};

Bytes input_of(const Head& head, std::span<const std::byte> frame) {
  Bytes input(sizeof head + frame.size());
  std::memcpy(input.data(), &head, sizeof head);
  std::ranges::copy(frame, input.begin() + sizeof head);
  return input;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint8_t e = 0; e < std::size(kEncodings); ++e) {
    const auto encoding = make_encoding(*parse_encoding(kEncodings[e]));
    for (const std::uint16_t elements : {std::uint16_t{8}, std::uint16_t{300}}) {
      const Bytes frame = sample_frame(*encoding, elements);
      all.push_back(input_of({e, 0, static_cast<std::uint16_t>(elements - 1), 64}, frame));
    }
  }
  return all;
}

void run(std::span<const std::byte> given) {
  Choices input(given);
  const auto head = input.number<Head>();
  const auto encoding = make_encoding(*parse_encoding(kEncodings[head.encoding % std::size(kEncodings)]));
  const std::size_t elements = 1 + head.elements % kMostElements, shift = head.alignment % sizeof(float);
  const std::size_t bytes = encoding->bytes(elements);
  // Ends where the memory does.
  Bytes memory(shift + bytes);
  std::byte* const frame = memory.data() + shift;
  std::ranges::copy(input.take(bytes), frame);
  if (!encoding->valid(frame, elements)) return;

  std::vector<float> whole(elements), parts(elements);
  decode_push(*encoding, frame, head.weight, elements, 0, elements, whole.data());
  for (std::size_t first = 0, count; first < elements; first += count) {
    count = std::min<std::size_t>(8 * (1 + first % 5), elements - first);
    decode_push(*encoding, frame, head.weight, elements, first, count, parts.data() + first);
  }
  require(std::memcmp(whole.data(), parts.data(), elements * sizeof(float)) == 0, "parts have the bits of the whole");
  std::vector<float> parameters(elements, 1.0f);
  encoding->apply(frame, elements, parameters.data());
}

Target target() {
  return {"frames", seeds, run};
}

}  // namespace tributary::fuzz::frames
