// fused_step against its parts, one after the other over whole arrays: decode, tree_sum, scale, step, encode.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/math/fused_step.h"
#include "kernels/tree_sum.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::fused_step_test {

namespace {

std::vector<float> some_values(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  std::uint32_t state = seed * 2654435761u + 1;
  for (float& v : values) {
    state = state * 1664525u + 1013904223u;
    v = std::ldexp(static_cast<float>(static_cast<int>(state >> 8) - (1 << 23)), -24 - static_cast<int>(state % 11));
  }
  return values;
}

struct Chunk {
  std::vector<float> params, state[kernels::kMaxSlots];
  std::vector<std::byte> answer;
};

struct Case {
  std::string optimizer = "adamw";
  std::size_t elements = 0, frames = 1;
  EncodingId push = EncodingId::kFp32, pull = EncodingId::kFp32;
  std::size_t offset = 0;  // of the frames from a 16-byte boundary, bytes
  bool in_place = true, answers = true;
  float scale = 1.0f / 48.0f;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check(const Case& c) {
  CAPTURE(c.optimizer);
  CAPTURE(c.elements);
  CAPTURE(c.frames);
  CAPTURE(static_cast<int>(c.push));
  CAPTURE(static_cast<int>(c.pull));
  CAPTURE(c.offset);
  CAPTURE(c.in_place);
  CAPTURE(c.scale);
  const auto options = kernels::options_of(c.optimizer, {{"weight_decay", 0.01}, {"momentum", 0.9}});
  const std::unique_ptr<kernels::Optimizer> optimizer = kernels::make_optimizer(c.optimizer, options);
  const kernels::StepScalars scalars = optimizer->scalars(3, 0.01);
  const Encoding &push = encoding_for(c.push), &pull = encoding_for(c.pull);

  std::vector<std::vector<std::byte>> memory;
  std::vector<PushFrame> frames;
  std::vector<std::vector<float>> decoded;
  std::vector<const float*> inputs;
  for (std::size_t k = 0; k < c.frames; ++k) {
    const std::vector<float> gradient = some_values(c.elements, static_cast<std::uint32_t>(k + 1));
    memory.emplace_back(push.bytes(c.elements) + c.offset);
    push.encode(gradient.data(), c.elements, 0, c.elements, nullptr, memory.back().data() + c.offset);
    frames.push_back({memory.back().data() + c.offset, 100 * k + 1});
    decoded.emplace_back(c.elements);
    push.decode(frames.back().bytes, c.elements, 0, c.elements, decoded.back().data());
    kernels::scale(decoded.back().data(), c.elements, 1.0f / push.push_scale(frames.back().weight));
    inputs.push_back(decoded.back().data());
  }
  Chunk start;
  start.params = some_values(c.elements, 77);
  for (int slot = 0; slot < optimizer->slots(); ++slot) {
    start.state[slot] = some_values(c.elements, static_cast<std::uint32_t>(90 + slot));
    for (float& v : start.state[slot]) v = std::fabs(v);  // second moments are never negative
  }

  Chunk expected = start;
  std::vector<float> sum(c.elements);
  kernels::tree_sum(inputs, c.elements, sum.data());
  kernels::scale(sum.data(), c.elements, c.scale);
  kernels::BlockArgs block;
  block.count = c.elements;
  block.grad = sum.data();
  block.param_in = block.param_out = expected.params.data();
  for (int slot = 0; slot < optimizer->slots(); ++slot) {
    block.state_in[slot] = block.state_out[slot] = expected.state[slot].data();
  }
  optimizer->step(scalars, block);
  expected.answer.resize(pull.bytes(c.elements));
  pull.encode(expected.params.data(), c.elements, 0, c.elements, nullptr, expected.answer.data());

  Chunk in = start, out = start;
  for (std::vector<float>* array : {&out.params, &out.state[0], &out.state[1]}) {
    if (!c.in_place) std::fill(array->begin(), array->end(), std::nanf(""));
  }
  out.answer.resize(c.answers ? pull.bytes(c.elements) : 0);
  FusedArgs args{.elements = c.elements,
                 .frames = frames,
                 .push = &push,
                 .scale = c.scale,
                 .param_in = c.in_place ? out.params.data() : in.params.data(),
                 .param_out = out.params.data()};
  for (int slot = 0; slot < optimizer->slots(); ++slot) {
    args.state_in[slot] = c.in_place ? out.state[slot].data() : in.state[slot].data();
    args.state_out[slot] = out.state[slot].data();
  }
  args.pull = &pull;
  args.answer = c.answers ? out.answer.data() : nullptr;
  fused_step(*optimizer, scalars, args);

  CHECK_FALSE(same(expected.params, start.params));  // the step did something
  CHECK(same(out.params, expected.params));
  for (int slot = 0; slot < optimizer->slots(); ++slot) CHECK(same(out.state[slot], expected.state[slot]));
  if (c.answers) CHECK(out.answer == expected.answer);
  if (!c.in_place) CHECK(same(in.params, start.params));
}

TEST_CASE("fused_step equals its parts for any number of frames and any length, in place and out of place") {
  for (std::size_t frames : {1, 2, 3, 4, 5, 8}) {
    for (std::size_t elements :
         {std::size_t{1}, std::size_t{7}, kFusedBlock - 1, kFusedBlock, kFusedBlock + 1, 5 * kFusedBlock + 61}) {
      for (bool in_place : {true, false}) {
        check({.elements = elements, .frames = frames, .in_place = in_place});
      }
    }
  }
}

TEST_CASE("fused_step equals its parts for more frames than are summed in one loop") {
  for (std::size_t frames : {9, 13, 16, 17, 64}) {
    check({.elements = 1100, .frames = frames});
    check({.elements = 1100, .frames = frames, .push = EncodingId::kBf16, .pull = EncodingId::kBf16});
  }
}

TEST_CASE("a frame may be a subtree's sum, wherever it stands") {
  constexpr std::size_t kElements = 300;
  for (const std::size_t nodes : {5, 6, 7, 9, 13, 64, 100, 1023, 1024}) {
    for (std::uint32_t which = 0; which < 8; ++which) {
      CAPTURE(nodes);
      CAPTURE(which);
      std::vector<std::vector<float>> memory;
      std::vector<const float*> inputs;
      for (std::size_t k = 0; k < nodes; ++k) {
        memory.push_back(some_values(kElements, static_cast<std::uint32_t>(k + 1)));
        inputs.push_back(memory.back().data());
      }
      std::vector<float> expected(kElements), got(kElements);
      kernels::tree_sum(inputs, kElements, expected.data());
      // Some aligned parts of a power of two are one frame.
      std::vector<PushFrame> frames;
      std::uint32_t state = which * 7919u + static_cast<std::uint32_t>(nodes);
      for (std::size_t first = 0; first < nodes;) {
        std::size_t width = 1;
        while (first % (2 * width) == 0 && first + 2 * width <= nodes) {
          state = state * 1664525u + 1013904223u;
          if (state >> 30 == 0 || which == 0) break;
          width *= 2;
        }
        const std::span part(inputs.data() + first, width);
        if (width > 1) kernels::tree_sum(part, kElements, memory[first].data());
        frames.push_back({reinterpret_cast<const std::byte*>(inputs[first]), 1, static_cast<std::uint32_t>(width)});
        first += width;
      }
      FusedArgs args{.elements = kElements, .frames = frames, .push = &encoding_for(EncodingId::kFp32)};
      fused_sum(args, got.data());
      CHECK(same(got, expected));
    }
  }
}

TEST_CASE("fused_step takes the largest number of frames") {
  check({.elements = 100, .frames = kernels::kMaxSumInputs, .push = EncodingId::kFp16});
}

TEST_CASE("fused_step equals its parts for every optimizer") {
  for (const std::string& name : testing::stepping_optimizers()) {
    for (std::size_t frames : {1, 3}) {
      for (bool in_place : {true, false}) {
        check({.optimizer = name, .elements = 1031, .frames = frames, .in_place = in_place});
      }
    }
  }
}

TEST_CASE("fused_step equals its parts for every pair of encodings") {
  for (EncodingId push : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16}) {
    for (EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16}) {
      for (std::size_t frames : {1, 2, 5}) check({.elements = 1025, .frames = frames, .push = push, .pull = pull});
    }
  }
}

TEST_CASE("fused_step reads frames at any address") {
  for (EncodingId push : {EncodingId::kFp32, EncodingId::kBf16}) {
    for (std::size_t offset : {4, 8, 12, 2, 1}) {
      for (std::size_t frames : {1, 2, 8, 9}) {
        check({.elements = 1100, .frames = frames, .push = push, .offset = offset});
      }
    }
  }
}

TEST_CASE("fused_step does without an answer and without a scale") {
  check({.elements = 1100, .frames = 2, .answers = false});
  check({.elements = 1100, .frames = 1, .scale = 1.0f});
  check({.elements = 1100, .frames = 3, .scale = 1.0f});
}

}  // namespace

}  // namespace tributary::fused_step_test
