// Sums, scale, casts and facts.
#include "kernels/cast.h"
#include "kernels/facts.h"
#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

using kernels::GradientFacts;
namespace cuda = kernels::cuda;

TEST_CASE("CUDA tree_sum has the bits of the CPU's for every size and kind of values") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8}) {
        CAPTURE(count);
        CAPTURE(n);
        const Inputs inputs(make_arrays(kAllValues[(count + n) % 6], n, count, 1));
        const DeviceArray<float> out(count);
        cuda::tree_sum(inputs.at_device, count, out.get(), stream());
        check_equal("sum", out.read(), inputs.sum());
      }
    }
  });
}

TEST_CASE("CUDA tree_sum adds any number of inputs in the documented tree") {
  in_all_ways([] {
    for (std::size_t n : {9, 10, 11, 15, 16, 17, 23, 24, 31, 32, 33, 63, 64, 65, 72, 100, 127, 255, 511, 1023, 1024}) {
      CAPTURE(n);
      const std::size_t count = 4096 + 37;
      const Inputs inputs(make_arrays(Values::kWild, n, count, 2));
      const DeviceArray<float> out(count);
      cuda::tree_sum(inputs.at_device, count, out.get(), stream());
      check_equal("sum", out.read(), inputs.sum());
    }
  });
}

TEST_CASE("CUDA tree_sum may put the sum over its first input") {
  in_all_ways([] {
    for (std::size_t n : {1, 2, 5, 8, 12}) {
      CAPTURE(n);
      const Inputs inputs(make_arrays(Values::kWild, n, 9001, 3));
      cuda::tree_sum(inputs.at_device, 9001, inputs.device[0]->get(), stream());
      check_equal("sum", inputs.device[0]->read(), inputs.sum());
    }
  });
}

TEST_CASE("CUDA scale has the bits of the CPU's") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (Values kind : kAllValues) {
        for (float factor : {1.0f / 3.0f, 0x1p-130f}) {
          CAPTURE(count);
          std::vector<float> host = make_values(kind, count, 4);
          const DeviceArray<float> device(host);
          cuda::scale(device.get(), count, factor, stream());
          kernels::scale(host.data(), count, factor);
          check_equal("scaled", device.read(), host);
        }
      }
    }
  });
}

struct HalfTwins {
  const char* name;
  void (*cpu_encode)(const float*, std::size_t, std::uint16_t*);
  void (*cpu_decode)(const std::uint16_t*, std::size_t, float*);
  GradientFacts (*cpu_facts)(const float*, std::size_t, std::uint16_t*);
  void (*encode)(const cuda::SumInputs&, std::size_t, std::uint16_t*, cuda::Stream);
  void (*decode)(const std::uint16_t*, std::size_t, float*, cuda::Stream);
  void (*facts)(const cuda::SumInputs&, std::size_t, std::uint16_t*, GradientFacts*, GradientFacts*, cuda::Stream);
};

const HalfTwins kHalves[] = {{"bf16", kernels::fp32_to_bf16, kernels::bf16_to_fp32, kernels::fp32_to_bf16_facts,
                              cuda::fp32_to_bf16, cuda::bf16_to_fp32, cuda::fp32_to_bf16_facts},
                             {"fp16", kernels::fp32_to_fp16, kernels::fp16_to_fp32, kernels::fp32_to_fp16_facts,
                              [](const cuda::SumInputs& in, std::size_t count, std::uint16_t* out,
                                 cuda::Stream stream) { cuda::fp32_to_fp16(in, count, 1.0f, out, stream); },
                              cuda::fp16_to_fp32, cuda::fp32_to_fp16_facts}};

void check_facts(const std::vector<GradientFacts>& device, const GradientFacts& host) {
  CHECK(device[0].non_finite == host.non_finite);
  const bool both_nan = std::isnan(device[0].sum_squares) && std::isnan(host.sum_squares);
  if (!both_nan) {
    CHECK(std::bit_cast<std::uint64_t>(device[0].sum_squares) == std::bit_cast<std::uint64_t>(host.sum_squares));
  }
}

TEST_CASE("CUDA casts have the bits of the CPU's, also those of NaNs") {
  in_all_ways([] {
    for (const HalfTwins& half : kHalves) {
      for (std::size_t count : sizes()) {
        for (Values kind : kAllValues) {
          CAPTURE(half.name);
          CAPTURE(count);
          const Inputs in(make_arrays(kind, 1, count, 5));
          std::vector<std::uint16_t> encoded(count);
          half.cpu_encode(in.at_host[0], count, encoded.data());
          const DeviceArray<std::uint16_t> halves(count);
          half.encode(in.fused(), count, halves.get(), stream());
          check_equal("halves", halves.read(), encoded);
          std::vector<float> decoded(count);
          half.cpu_decode(encoded.data(), count, decoded.data());
          const DeviceArray<float> floats(count);
          half.decode(halves.get(), count, floats.get(), stream());
          check_equal("floats", floats.read(), decoded, Nan::kSameBits);
        }
      }
    }
  });
}

TEST_CASE("CUDA scales sums on their way to fp16 as the CPU does") {
  in_all_ways([] {
    for (const std::size_t n : {1, 3, 8}) {
      for (const float scale : {0x1p-1f, 0x1p-16f, 0x1p-64f}) {
        const std::size_t count = 4096 * 2 + 99;
        CAPTURE(n);
        CAPTURE(scale);
        const Inputs in(make_arrays(Values::kWild, n, count, 8));
        std::vector<float> sum = in.sum();
        kernels::scale(sum.data(), count, scale);
        std::vector<std::uint16_t> encoded(count);
        kernels::fp32_to_fp16(sum.data(), count, encoded.data());
        const DeviceArray<std::uint16_t> halves(count);
        cuda::fp32_to_fp16(in.fused(), count, scale, halves.get(), stream());
        check_equal("halves", halves.read(), encoded);
      }
    }
  });
}

TEST_CASE("CUDA decodes all 65536 halves as the CPU does") {
  in_all_ways([] {
    for (const HalfTwins& half : kHalves) {
      CAPTURE(half.name);
      std::vector<std::uint16_t> all(65536);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
      std::vector<float> decoded(all.size());
      half.cpu_decode(all.data(), all.size(), decoded.data());
      const DeviceArray<std::uint16_t> halves(all);
      const DeviceArray<float> floats(all.size());
      half.decode(halves.get(), all.size(), floats.get(), stream());
      check_equal("floats", floats.read(), decoded, Nan::kSameBits);
    }
  });
}

TEST_CASE("CUDA casts sum up to eight inputs on the way in, with and without facts") {
  in_all_ways([] {
    for (const HalfTwins& half : kHalves) {
      for (std::size_t n : {2, 3, 4, 5, 6, 7, 8}) {
        for (std::size_t count : {5, 4096 * 2 + 99}) {
          CAPTURE(half.name);
          CAPTURE(n);
          CAPTURE(count);
          const Inputs in(make_arrays(kFiniteValues[n % 4], n, count, 6));
          const std::vector<float> sum = in.sum();
          std::vector<std::uint16_t> encoded(count);
          const GradientFacts facts = half.cpu_facts(sum.data(), count, encoded.data());
          const DeviceArray<std::uint16_t> halves(count), with_facts(count);
          half.encode(in.fused(), count, halves.get(), stream());
          check_equal("halves", halves.read(), encoded);
          const DeviceArray<GradientFacts> found(1), scratch(cuda::facts_scratch_elements(count));
          half.facts(in.fused(), count, with_facts.get(), found.get(), scratch.get(), stream());
          check_equal("halves with facts", with_facts.read(), encoded);
          check_facts(found.read(), facts);
        }
      }
    }
  });
}

TEST_CASE("CUDA facts have the bits of the CPU's, alone and with casts") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (Values kind : kAllValues) {
        CAPTURE(count);
        CAPTURE(static_cast<int>(kind));
        const Inputs in(make_arrays(kind, 1, count, 7));
        const DeviceArray<GradientFacts> found(1), scratch(cuda::facts_scratch_elements(count));
        cuda::gradient_facts(in.fused(), count, found.get(), scratch.get(), stream());
        check_facts(found.read(), kernels::gradient_facts(in.at_host[0], count));
        for (const HalfTwins& half : kHalves) {
          CAPTURE(half.name);
          std::vector<std::uint16_t> encoded(count);
          const GradientFacts facts = half.cpu_facts(in.at_host[0], count, encoded.data());
          const DeviceArray<std::uint16_t> halves(count);
          half.facts(in.fused(), count, halves.get(), found.get(), scratch.get(), stream());
          check_equal("halves", halves.read(), encoded);
          check_facts(found.read(), facts);
        }
      }
    }
  });
}

TEST_CASE("CUDA facts of more blocks than lanes have the bits of the CPU's") {
  in_all_ways([] {
    for (Values kind : {Values::kWild, Values::kSpecial}) {
      const std::size_t count = 1029 * 4096 + 17;
      const Inputs in(make_arrays(kind, 1, count, 8));
      const DeviceArray<GradientFacts> found(1), scratch(cuda::facts_scratch_elements(count));
      cuda::gradient_facts(in.fused(), count, found.get(), scratch.get(), stream());
      check_facts(found.read(), kernels::gradient_facts(in.at_host[0], count));
    }
  });
}

}  // namespace
}  // namespace tributary::twins
