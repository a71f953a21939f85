// Payloads in memory that their sender writes meanwhile: bytes of a frame change between valid() and the decoders, and
// those of a top-k residual between the passes of its selection.
#include <cstring>
#include <memory>
#include <numeric>

#include "common/math/encoding.h"
#include "common/math/fused_step.h"
#include "kernels/topk.h"
#include "kernels/topk_passes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/sample_frame.h"

namespace tributary::fuzz::changed {
namespace {

namespace passes = kernels::topk_passes;

constexpr std::string_view kEncodings[] = {"fp32",      "bf16",   "fp16",   "int8",
                                           "topk:0.01", "topk:1", "onebit", "int8-delta"};
constexpr std::size_t kMostElements = kernels::kTopKGroup + 2048;
constexpr std::size_t kMostSeed = 16'000;  // bytes: what scripts/fuzz.sh tries, and `make test` has time for

// The input: as that of fuzz_frames.cc, the frame with its length in front, and what changes.
struct Head {
  std::uint8_t encoding = 0, alignment = 0;
  std::uint16_t frames = 0;
  std::uint32_t elements = 0;
  std::uint32_t frame_bytes = 0;
};
struct Change {
  std::uint32_t place = 0;
  std::uint16_t value = 0, length = 0;
};

Bytes input_of(const Head& head, std::span<const std::byte> frame, std::span<const Change> changes) {
  Bytes input(sizeof head + frame.size() + changes.size_bytes());
  std::memcpy(input.data(), &head, sizeof head);
  std::ranges::copy(frame, input.begin() + sizeof head);
  std::ranges::copy(std::as_bytes(changes), input.begin() + static_cast<std::ptrdiff_t>(sizeof head + frame.size()));
  return input;
}

void write(const Change& change, std::span<std::byte> to) {
  for (std::size_t i = 0; i < 1u + change.length % 64; ++i) {
    const std::size_t at = (change.place + i * sizeof change.value) % to.size();
    std::memcpy(to.data() + at, &change.value, std::min(sizeof change.value, to.size() - at));
  }
}

void change_some(Choices& input, std::span<std::byte> bytes, int most) {
  for (int i = 0; i < most && !input.over(); ++i) write(input.number<Change>(), bytes);
}

void step(const Encoding& encoding, std::span<const PushFrame> frames, std::size_t elements) {
  static const auto optimizer = kernels::make_optimizer("sgd", {});
  std::vector<float> parameters(elements, 1.0f), sum(elements);
  FusedArgs args{.elements = elements, .frames = frames, .push = &encoding};
  fused_sum(args, sum.data());
  args.param_in = args.param_out = parameters.data();
  fused_step(*optimizer, optimizer->scalars(1, 0.1), args);
}

void select(Choices& input, std::size_t elements, std::span<const std::byte> bytes) {
  const std::size_t k = 1 + elements / 50;
  std::vector<float> residual(elements, 0.5f);
  std::memcpy(residual.data(), bytes.data(), std::min(bytes.size(), elements * sizeof(float)));
  const std::span<std::byte> written = std::as_writable_bytes(std::span(residual));
  std::vector<std::uint32_t> counts(kernels::topk_groups(elements)), scratch(elements);
  std::vector<float> values(k);
  std::vector<std::uint16_t> offsets(k);
  const passes::Place found = passes::find_step(residual.data(), elements, k);
  change_some(input, written, 3);
  const passes::Threshold threshold = passes::find_threshold(residual.data(), elements, found, scratch.data());
  change_some(input, written, 3);
  const std::size_t taken =
      passes::take(residual.data(), elements, k, threshold, counts.data(), values.data(), offsets.data());
  require(taken <= k, "no more values are sent than there is room for");
  require(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == taken, "what is sent is counted");
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint8_t e = 0; e < std::size(kEncodings); ++e) {
    const auto encoding = make_encoding(*parse_encoding(kEncodings[e]));
    for (const std::uint32_t elements : {300u, static_cast<std::uint32_t>(kernels::kTopKGroup) + 300u}) {
      const Bytes frame = sample_frame(*encoding, elements);
      if (frame.size() > kMostSeed) continue;
      const Head head{e, 0, 2, elements - 1, static_cast<std::uint32_t>(frame.size())};
      const auto end = static_cast<std::uint32_t>(frame.size());
      const Change counts_grow[] = {{0, 0xffff, 3}}, offsets_fall[] = {{end - 40, 1, 8}};
      const Change all_over[] = {{4, 7, 40}, {end / 2, 0x7f80, 60}, {end - 1, 0, 0}, {end / 3, 0x8000, 9}};
      all.push_back(input_of(head, frame, counts_grow));
      all.push_back(input_of(head, frame, offsets_fall));
      if (elements < 1000) all.push_back(input_of(head, frame, all_over));
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
  const std::span<std::byte> frame = std::span(memory).subspan(shift);
  const std::span<const std::byte> sent = input.take(std::min<std::size_t>(head.frame_bytes, bytes));
  std::ranges::copy(sent, frame.begin());
  if (encoding->keeps_residual()) {
    Choices again = input;
    select(again, elements, sent);
  }
  if (!encoding->valid(frame.data(), elements)) return;
  change_some(input, frame, 64);

  std::vector<float> whole(elements);
  encoding->decode(frame.data(), elements, 0, elements, whole.data());
  for (std::size_t first = 0, count; first < elements; first += count) {
    count = std::min<std::size_t>(8 * (1 + first % 500), elements - first);
    std::vector<float> part(count);
    encoding->decode(frame.data(), elements, first, count, part.data());
  }
  std::vector<float> parameters(elements, 1.0f);
  encoding->apply(frame.data(), elements, parameters.data());
  const std::vector<PushFrame> frames(1 + head.frames % 9, PushFrame{frame.data()});
  if (!encoding->is_delta()) step(*encoding, frames, elements);
}

Target target() {
  return {"changed", seeds, run};
}

}  // namespace tributary::fuzz::changed
