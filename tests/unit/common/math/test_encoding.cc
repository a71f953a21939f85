#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/math/encoding.h"
#include "kernels/cast.h"

namespace tributary::encoding_test {

namespace {

constexpr EncodingId kAll[] = {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16};

std::vector<float> some_values(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] =
        std::ldexp(static_cast<float>(static_cast<int>(i * 2654435761u % 20011) - 10005), static_cast<int>(i % 9) - 16);
  }
  return values;
}

TEST_CASE("encodings are found by id, by name and by the number on the wire") {
  const char* names[] = {"fp32", "bf16", "fp16"};
  for (std::uint8_t number = 0; number < 3; ++number) {
    const EncodingId id = kAll[number];
    CHECK(encoding_for(id).id() == id);
    CHECK(encoding_for(id).name() == names[number]);
    CHECK(parse_encoding(names[number]) == id);
  }
  for (const char* name : {"", "FP32", "fp8", "bf16 ", "float"}) CHECK_FALSE(parse_encoding(name).has_value());
}

TEST_CASE("frames have four bytes a value in fp32 and two in bf16 and fp16") {
  for (std::size_t elements : {0, 1, 7, 262144}) {
    CHECK(encoding_for(EncodingId::kFp32).bytes(elements) == 4 * elements);
    CHECK(encoding_for(EncodingId::kBf16).bytes(elements) == 2 * elements);
    CHECK(encoding_for(EncodingId::kFp16).bytes(elements) == 2 * elements);
  }
}

TEST_CASE("only fp32 frames that are aligned for float are read in place") {
  alignas(16) std::byte frame[64] = {};
  for (std::size_t offset = 0; offset < 8; ++offset) {
    const float* in_place = encoding_for(EncodingId::kFp32).as_fp32(frame + offset);
    if (offset % 4 == 0) {
      CHECK(reinterpret_cast<const std::byte*>(in_place) == frame + offset);
    } else {
      CHECK(in_place == nullptr);
    }
    CHECK(encoding_for(EncodingId::kBf16).as_fp32(frame + offset) == nullptr);
    CHECK(encoding_for(EncodingId::kFp16).as_fp32(frame + offset) == nullptr);
  }
}

TEST_CASE("a frame's bytes are the little-endian values, whatever the ranges and address they are written by") {
  constexpr std::size_t kElements = 1500;
  const std::vector<float> values = some_values(kElements);
  for (EncodingId id : kAll) {
    const Encoding& encoding = encoding_for(id);
    std::vector<std::byte> expected(encoding.bytes(kElements));
    std::vector<std::uint16_t> halves(kElements);
    if (id == EncodingId::kFp32) std::memcpy(expected.data(), values.data(), expected.size());
    if (id == EncodingId::kBf16) kernels::fp32_to_bf16(values.data(), kElements, halves.data());
    if (id == EncodingId::kFp16) kernels::fp32_to_fp16(values.data(), kElements, halves.data());
    if (id != EncodingId::kFp32) std::memcpy(expected.data(), halves.data(), expected.size());
    for (std::size_t offset : {0, 1, 2, 4, 8, 11}) {
      for (std::size_t piece : {1, 100, 513, 1500}) {
        CAPTURE(encoding.name());
        CAPTURE(offset);
        CAPTURE(piece);
        std::vector<std::byte> frame(offset + expected.size() + 1, std::byte{0x5a});
        for (std::size_t first = 0; first < kElements; first += piece) {
          const std::size_t count = std::min(piece, kElements - first);
          encoding.encode(values.data() + first, kElements, first, count, nullptr, frame.data() + offset);
        }
        CHECK(std::memcmp(frame.data() + offset, expected.data(), expected.size()) == 0);
        CHECK(frame.back() == std::byte{0x5a});
      }
    }
  }
}

TEST_CASE("decoding any range at any address gives the encoded values, rounded as the format has it") {
  constexpr std::size_t kElements = 1300;
  const std::vector<float> values = some_values(kElements);
  for (EncodingId id : kAll) {
    const Encoding& encoding = encoding_for(id);
    const double precision = id == EncodingId::kFp32 ? 0.0 : id == EncodingId::kBf16 ? 0x1p-8 : 0x1p-11;
    for (std::size_t offset : {0, 1, 4, 8, 13}) {
      std::vector<std::byte> frame(offset + encoding.bytes(kElements));
      encoding.encode(values.data(), kElements, 0, kElements, nullptr, frame.data() + offset);
      std::vector<float> whole(kElements);
      encoding.decode(frame.data() + offset, kElements, 0, kElements, whole.data());
      for (std::size_t i = 0; i < kElements; ++i) {
        // 2^-25: half of the smallest step between fp16 values
        REQUIRE(std::fabs(static_cast<double>(whole[i]) - values[i]) <=
                std::fmax(precision * std::fabs(values[i]), id == EncodingId::kFp16 ? 0x1p-25 : 0.0));
      }
      for (std::size_t first : {0, 1, 640, 1299}) {
        for (std::size_t count : {0, 1, 100, 600}) {
          if (first + count > kElements) continue;
          CAPTURE(encoding.name());
          CAPTURE(offset);
          CAPTURE(first);
          CAPTURE(count);
          std::vector<float> part(count + 1, 7.0f);
          encoding.decode(frame.data() + offset, kElements, first, count, part.data());
          CHECK(std::memcmp(part.data(), whole.data() + first, count * sizeof(float)) == 0);
          CHECK(part[count] == 7.0f);
        }
      }
    }
  }
}

TEST_CASE("what a push of fp16 carries does not grow with the batch, and costs no bit; others have the range") {
  for (const EncodingId id : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kInt8, EncodingId::kOneBit}) {
    CHECK(encoding_for(id).push_scale(60'000) == 1.0f);
  }
  const Encoding& fp16 = encoding_for(EncodingId::kFp16);
  CHECK(fp16.push_scale(0) == 1.0f);
  CHECK(fp16.push_scale(1) == 1.0f);
  CHECK(fp16.push_scale(2) == 0.5f);
  CHECK(fp16.push_scale(3) == 0.25f);
  CHECK(fp16.push_scale(60'000) == 0x1p-16f);
  CHECK(fp16.push_scale(~0ull) == 0x1p-64f);
  for (const std::uint64_t weight : {1ull, 3ull, 128ull, 60'000ull, 1ull << 40}) {
    const auto samples = static_cast<float>(weight);
    // The largest mean that fp16 has.
    const std::vector<float> sums = {1.09f * samples, -1.09f * samples, 0.001f * samples, 65'504.0f * samples, 0.0f};
    std::vector<float> scaled = sums, back(sums.size());
    for (float& value : scaled) value *= fp16.push_scale(weight);
    std::vector<std::byte> frame(fp16.bytes(sums.size()));
    fp16.encode(scaled.data(), sums.size(), 0, sums.size(), nullptr, frame.data());
    decode_push(fp16, frame.data(), weight, sums.size(), 0, sums.size(), back.data());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      CAPTURE(weight);
      CHECK(std::fabs(back[i] - sums[i]) <= 0x1p-11f * std::fabs(sums[i]));
    }
  }
}

}  // namespace

}  // namespace tributary::encoding_test
