// The encodings with error feedback, as their authors and receivers use them (common/math/encoding.h). The arithmetic
// has its own tests; here it is names, bytes on the wire, parts and refusals.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/layout.h"
#include "common/math/encoding.h"
#include "common/math/fused_step.h"
#include "common/wire/messages.h"
#include "tests/unit/required.h"

namespace tributary::feedback_encodings_test {
namespace {

const char* const kFeedback[] = {"int8", "topk:0.01", "topk:0.3", "topk:1", "onebit"};

std::vector<float> some_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Author {
  Author(std::shared_ptr<const Encoding> e, std::size_t elements)
      : encoding(std::move(e)),
        residual(elements),
        frame(encoding->bytes(elements)),
        scratch(encoding->scratch_words(elements)) {}
  // In parts of `part` values, a multiple of the granularity.
  void encode(const std::vector<float>& values, std::size_t part) {
    for (std::size_t first = 0; first < values.size(); first += part) {
      encoding->encode(values.data() + first, values.size(), first, std::min(part, values.size() - first),
                       residual.data(), frame.data());
    }
    encoding->finish(values.size(), residual.data(), frame.data(), scratch);
  }
  std::vector<float> sent() const {
    std::vector<float> out(residual.size());
    encoding->decode(frame.data(), residual.size(), 0, residual.size(), out.data());
    return out;
  }
  std::shared_ptr<const Encoding> encoding;
  std::vector<float> residual;
  std::vector<std::byte> frame;
  std::vector<std::uint32_t> scratch;
};

TEST_CASE("names of encodings are read and written back as they are") {
  for (const char* name :
       {"fp32", "bf16", "fp16", "int8", "onebit", "int8-delta", "topk:0.01", "topk:0.000001", "topk:0.25", "topk:1"}) {
    CAPTURE(name);
    const auto spec = required(parse_encoding(name));
    CHECK(make_encoding(spec)->name() == name);
    CHECK(make_encoding(spec)->spec() == spec);
  }
  CHECK(parse_encoding("topk:0.010") == parse_encoding("topk:0.01"));
  for (const char* name : {"topk", "topk:", "topk:0", "topk:0.0", "topk:2", "topk:-0.1", "topk:0.1x", "topk:0.0000001",
                           "topk:.1", "topk:1e-2", "topk:0.01:exact", "int4", "int8delta", "one-bit"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_encoding(name));
  }
}

TEST_CASE("some encodings are for one direction only") {
  for (const char* name : {"int8", "topk:0.01", "onebit"}) {
    CHECK(usable_for_push(*parse_encoding(name)));
    CHECK_FALSE(usable_for_pull(*parse_encoding(name)));
    CHECK(make_encoding(*parse_encoding(name))->keeps_residual());
  }
  for (const char* name : {"fp32", "bf16", "fp16"}) {
    CHECK(usable_for_push(*parse_encoding(name)));
    CHECK(usable_for_pull(*parse_encoding(name)));
    CHECK_FALSE(make_encoding(*parse_encoding(name))->keeps_residual());
  }
  CHECK(usable_for_pull(EncodingId::kInt8Delta));
  CHECK_FALSE(usable_for_push(EncodingId::kInt8Delta));
}

TEST_CASE("frames have the documented number of bytes") {
  const auto bytes = [](const char* name, std::size_t n) { return make_encoding(*parse_encoding(name))->bytes(n); };
  CHECK(bytes("int8", 262144) == 4 * 1024 + 262144);  // 3.94 times less than fp32
  CHECK(bytes("int8", 300) == 16 + 300);              // 2 scales, up to a multiple of 16
  CHECK(bytes("int8-delta", 300) == bytes("int8", 300));
  CHECK(bytes("onebit", 262144) == 4 * 64 + 262144 / 8);  // 31.75 times
  CHECK(bytes("onebit", 4100) == 16 + 513);
  CHECK(bytes("topk:0.01", 262144) == 4 * 4 + 6 * 2622);  // 66.6 times
  CHECK(bytes("topk:0.01", 10) == 4 + 6);
  CHECK(bytes("topk:1", 10) == 4 + 60);
  // The largest payload: all values of the largest chunk, and the residual behind them.
  const std::size_t largest = kMaxChunkBytes / sizeof(float);
  CHECK(residual_offset(bytes("topk:1", largest)) + kMaxChunkBytes <= kMaxDataPayload);
}

TEST_CASE("what is sent and what is left add up to what was to be sent, whatever the parts") {
  for (const char* name : kFeedback) {
    for (const std::size_t elements : {1, 255, 4096, 9001, 70'000}) {
      CAPTURE(name);
      CAPTURE(elements);
      const auto encoding = make_encoding(*parse_encoding(name));
      Author whole(encoding, elements), parts(encoding, elements);
      const std::size_t granularity = encoding->granularity();
      std::vector<float> owed(elements);
      for (std::uint32_t round = 0; round < 4; ++round) {
        const std::vector<float> values = some_values(elements, round);
        for (std::size_t i = 0; i < elements; ++i) owed[i] = whole.residual[i] + values[i];
        whole.encode(values, elements);
        parts.encode(values, std::max<std::size_t>(granularity, 4096 / granularity * granularity));
        CHECK(whole.frame == parts.frame);
        CHECK(whole.residual == parts.residual);
        CHECK(encoding->valid(whole.frame.data(), elements));
        const std::vector<float> sent = whole.sent();
        for (std::size_t i = 0; i < elements; ++i) {
          const double sum = static_cast<double>(sent[i]) + static_cast<double>(whole.residual[i]);
          const double unit = std::ldexp(std::max(std::fabs(owed[i]), std::fabs(sent[i])), -24);
          REQUIRE(std::fabs(sum - static_cast<double>(owed[i])) <= unit);
        }
      }
    }
  }
}

TEST_CASE("any part of a frame at any address decodes to the same values") {
  constexpr std::size_t kElements = 9001;
  for (const char* name : {"int8", "topk:0.3", "onebit", "topk:0.01"}) {
    CAPTURE(name);
    Author author(make_encoding(*parse_encoding(name)), kElements);
    author.encode(some_values(kElements, 1), kElements);
    const std::vector<float> whole = author.sent();
    for (const std::size_t offset : {1, 3, 8}) {
      std::vector<std::byte> moved(offset + author.frame.size());
      std::memcpy(moved.data() + offset, author.frame.data(), author.frame.size());
      CHECK(author.encoding->valid(moved.data() + offset, kElements));
      std::vector<float> pieces(kElements);
      for (std::size_t first = 0; first < kElements; first += 128) {
        author.encoding->decode(moved.data() + offset, kElements, first, std::min<std::size_t>(128, kElements - first),
                                pieces.data() + first);
      }
      CHECK(pieces == whole);
    }
  }
}

TEST_CASE("a top-k frame that contradicts itself is not valid") {
  constexpr std::size_t kElements = 9001;
  Author author(make_encoding(*parse_encoding("topk:0.01")), kElements);
  author.encode(some_values(kElements, 1), kElements);
  REQUIRE(author.encoding->valid(author.frame.data(), kElements));
  auto count = author.frame;
  count[0] ^= std::byte{1};
  CHECK_FALSE(author.encoding->valid(count.data(), kElements));
  auto order = author.frame;
  std::memset(order.data() + order.size() - 4, 0, 4);  // the last two places twice 0
  CHECK_FALSE(author.encoding->valid(order.data(), kElements));
}

TEST_CASE("the author's estimate and the receiver's parameters stay the same bits and follow the values") {
  constexpr std::size_t kElements = 2500;
  const auto encoding = make_encoding(EncodingId::kInt8Delta);
  CHECK(encoding->is_delta());
  std::vector<float> values = some_values(kElements, 1), estimate = values, received = values;
  std::vector<std::byte> frame(encoding->bytes(kElements));
  for (std::uint32_t round = 2; round < 30; ++round) {
    const std::vector<float> step = some_values(kElements, round);
    for (std::size_t i = 0; i < kElements; ++i) values[i] += 0.01f * step[i];
    encoding->encode_update(values.data(), kElements, 0, kElements, estimate.data(), frame.data());
    encoding->apply(frame.data(), kElements, received.data());
    REQUIRE(std::memcmp(estimate.data(), received.data(), kElements * sizeof(float)) == 0);
    for (std::size_t i = 0; i < kElements; ++i) {
      REQUIRE(std::fabs(values[i] - estimate[i]) <= 0.06f / 127.0f);  // half a step of the largest change, generously
    }
  }
}

TEST_CASE("a fused step with a delta encoding gives the bits of step and encoding one after the other") {
  constexpr std::size_t kElements = 1111;
  const auto optimizer = kernels::make_optimizer("adam", kernels::options_of("adam", {}));
  const auto scalars = optimizer->scalars(1, 0.1);
  const auto pull = make_encoding(EncodingId::kInt8Delta);
  const std::vector<float> gradient = some_values(kElements, 3), start = some_values(kElements, 4);
  std::vector<float> m(kElements), v(kElements), params = start, estimate(kElements), seen = some_values(kElements, 5);
  std::vector<std::byte> answer(pull->bytes(kElements));
  const PushFrame pushed{reinterpret_cast<const std::byte*>(gradient.data())};
  FusedArgs args{.elements = kElements,
                 .frames = {&pushed, 1},
                 .push = &encoding_for(EncodingId::kFp32),
                 .scale = 0.5f,
                 .param_in = start.data(),
                 .param_out = params.data()};
  args.state_in[0] = args.state_out[0] = m.data();
  args.state_in[1] = args.state_out[1] = v.data();
  args.pull = pull.get();
  args.answer = answer.data();
  args.estimate_in = seen.data();
  args.estimate_out = estimate.data();
  fused_step(*optimizer, scalars, args);

  std::vector<float> expected = start, m2(kElements), v2(kElements), expected_estimate = seen;
  kernels::BlockArgs block;
  block.count = kElements;
  block.grad = gradient.data();
  block.grad_scale = 0.5f;
  block.param_in = block.param_out = expected.data();
  block.state_in[0] = block.state_out[0] = m2.data();
  block.state_in[1] = block.state_out[1] = v2.data();
  optimizer->step(scalars, block);
  std::vector<std::byte> expected_answer(answer.size());
  pull->encode_update(expected.data(), kElements, 0, kElements, expected_estimate.data(), expected_answer.data());
  CHECK(params == expected);
  CHECK(answer == expected_answer);
  CHECK(estimate == expected_estimate);
}

}  // namespace
}  // namespace tributary::feedback_encodings_test
