// int8, 1-bit and top-k.
#include "kernels/int8.h"
#include "kernels/onebit.h"
#include "kernels/topk.h"
#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

namespace cuda = kernels::cuda;

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

// ---- int8 ----

void check_int8(const Inputs& in, bool with_residual, Values residual_kind) {
  const std::size_t count = in.host[0].size(), blocks = kernels::int8_blocks(count);
  const std::vector<float> values = in.sum();
  std::vector<float> residual = make_values(residual_kind, count, 90), scales(blocks);
  std::vector<std::int8_t> q(count);
  const DeviceArray<float> device_residual(residual), device_scales(blocks);
  const DeviceArray<std::int8_t> device_q(count);
  kernels::int8_encode(values.data(), count, with_residual ? residual.data() : nullptr, scales.data(), q.data());
  cuda::int8_encode(in.fused(), count, with_residual ? device_residual.get() : nullptr, device_scales.get(),
                    device_q.get(), stream());
  check_equal("scales", device_scales.read(), scales);
  check_equal("q", device_q.read(), q);
  check_equal("residual", device_residual.read(), residual);
  if (with_residual) {
    const std::vector<float> old = make_values(residual_kind, count, 90);
    const DeviceArray<float> before(old), after(count);
    cuda::int8_encode(in.fused(), count, {before.get(), after.get()}, device_scales.get(), device_q.get(), stream());
    check_equal("q, residual elsewhere", device_q.read(), q);
    check_equal("residual elsewhere", after.read(), residual);
    check_equal("residual before", before.read(), old);
  }

  std::vector<float> decoded(count), sum = make_values(Values::kGradients, count, 91);
  const DeviceArray<float> device_decoded(count), device_sum(sum);
  kernels::int8_decode(bytes_of(scales), q.data(), 0, count, decoded.data());
  kernels::int8_decode_add(bytes_of(scales), q.data(), 0, count, sum.data());
  cuda::int8_decode(device_scales.get(), device_q.get(), count, device_decoded.get(), stream());
  cuda::int8_decode_add(device_scales.get(), device_q.get(), count, device_sum.get(), stream());
  check_equal("decoded", device_decoded.read(), decoded);
  check_equal("added", device_sum.read(), sum);
}

TEST_CASE("CUDA int8 has the bits of the CPU's, with and without residual") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (Values kind : kAllValues) {
        CAPTURE(count);
        CAPTURE(static_cast<int>(kind));
        const Inputs in(make_arrays(kind, 1, count, 10));
        check_int8(in, true, kind == Values::kSpecial ? Values::kGradients : kind);
        check_int8(in, false, Values::kGradients);
      }
    }
  });
}

TEST_CASE("CUDA int8 sums up to eight inputs on the way in") {
  in_all_ways([] {
    for (std::size_t n : {2, 3, 4, 5, 6, 7, 8}) {
      for (std::size_t count : {3, 4096 + 300}) {
        CAPTURE(n);
        CAPTURE(count);
        const Inputs in(make_arrays(kAllValues[n % 6], n, count, 11));
        check_int8(in, n % 2 == 0, Values::kGradients);
        check_int8(in, n % 2 != 0, Values::kWild);
      }
    }
  });
}

TEST_CASE("CUDA int8 delta moves the estimate by the CPU's bits, round after round") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (Values kind : kAllValues) {
        CAPTURE(count);
        CAPTURE(static_cast<int>(kind));
        const std::size_t blocks = kernels::int8_blocks(count);
        std::vector<float> estimate(count), scales(blocks);
        std::vector<std::int8_t> q(count);
        const DeviceArray<float> device_estimate(estimate), device_scales(blocks);
        const DeviceArray<std::int8_t> device_q(count);
        const std::vector<float> target = make_values(kind, count, 12);
        const DeviceArray<float> device_target(target);
        for (int round = 0; round < 2; ++round) {
          kernels::int8_encode_delta(target.data(), count, estimate.data(), scales.data(), q.data());
          cuda::int8_encode_delta(device_target.get(), count, device_estimate.get(), device_scales.get(),
                                  device_q.get(), stream());
          check_equal("scales", device_scales.read(), scales);
          check_equal("q", device_q.read(), q);
          check_equal("estimate", device_estimate.read(), estimate);
        }
      }
    }
  });
}

TEST_CASE("CUDA int8 takes the edges of the scale as the CPU does") {
  in_all_ways([] {
    const float edges[] = {kernels::kInt8Smallest,
                           std::nextafter(kernels::kInt8Smallest, 0.0f),
                           kernels::kInt8Overflow,
                           std::nextafter(kernels::kInt8Overflow, 0.0f),
                           0.0f,
                           -0.0f,
                           0x1p-149f,
                           0x1.fffffep127f,
                           127.0f,
                           std::bit_cast<float>(0x7f800000u)};
    for (float edge : edges) {
      CAPTURE(edge);
      std::vector<float> values = make_values(Values::kGradients, 600, 13);
      for (std::size_t i = 0; i < values.size(); ++i) {
        // Halves of a step, which round to even, and the edge itself in the middle block.
        values[i] = static_cast<float>(static_cast<int>(i % 255) - 127) * 0.5f * (edge / 127.0f);
      }
      values[300] = -edge;
      check_int8(Inputs({values}), true, Values::kDenormal);
      check_int8(Inputs({values}), false, Values::kDenormal);
    }
  });
}

// ---- 1-bit ----

void check_onebit(const Inputs& in, Values residual_kind) {
  const std::size_t count = in.host[0].size(), blocks = kernels::onebit_blocks(count);
  const std::vector<float> values = in.sum();
  std::vector<float> residual = make_values(residual_kind, count, 92), scales(blocks), decoded(count);
  std::vector<std::uint8_t> bits((count + 7) / 8);
  const DeviceArray<float> device_residual(residual), device_scales(blocks), device_decoded(count);
  const DeviceArray<std::uint8_t> device_bits(bits.size());
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> old = residual;
    const DeviceArray<float> before(old), after(count);
    cuda::onebit_encode(in.fused(), count, {before.get(), after.get()}, device_scales.get(), device_bits.get(),
                        stream());
    kernels::onebit_encode(values.data(), count, residual.data(), scales.data(), bits.data());
    cuda::onebit_encode(in.fused(), count, device_residual.get(), device_scales.get(), device_bits.get(), stream());
    check_equal("scales", device_scales.read(), scales);
    check_equal("bits", device_bits.read(), bits);
    check_equal("residual", device_residual.read(), residual);
    check_equal("residual elsewhere", after.read(), residual);
    check_equal("residual before", before.read(), old);
  }
  kernels::onebit_decode(bytes_of(scales), bits.data(), 0, count, decoded.data());
  cuda::onebit_decode(device_scales.get(), device_bits.get(), count, device_decoded.get(), stream());
  check_equal("decoded", device_decoded.read(), decoded);
}

TEST_CASE("CUDA 1-bit has the bits of the CPU's, round after round") {
  in_all_ways([] {
    for (std::size_t count : sizes()) {
      for (Values kind : kAllValues) {
        CAPTURE(count);
        CAPTURE(static_cast<int>(kind));
        check_onebit(Inputs(make_arrays(kind, 1, count, 14)), kind == Values::kWild ? kind : Values::kGradients);
      }
    }
  });
}

TEST_CASE("CUDA 1-bit sums up to eight inputs on the way in") {
  in_all_ways([] {
    for (std::size_t n : {2, 3, 4, 5, 6, 7, 8}) {
      for (std::size_t count : {9, 2 * 4096 + 13}) {
        CAPTURE(n);
        CAPTURE(count);
        check_onebit(Inputs(make_arrays(kAllValues[n % 6], n, count, 15)), Values::kTies);
      }
    }
  });
}

// ---- Top-k ----

std::vector<std::size_t> ks_for(std::size_t elements) {
  std::vector<std::size_t> ks = {1, elements, (elements + 99) / 100, elements / 2 + 1};
  std::sort(ks.begin(), ks.end());
  ks.erase(std::unique(ks.begin(), ks.end()), ks.end());
  return ks;
}

// added: nothing, or the inputs of a sum.
void check_topk(const std::vector<float>& start, const Inputs& added, std::size_t k) {
  const std::size_t elements = start.size(), groups = kernels::topk_groups(elements);
  std::vector<float> residual = start, values(k), decoded(elements);
  std::vector<std::uint32_t> counts(groups), scratch(elements);
  std::vector<std::uint16_t> offsets(k);
  const DeviceArray<float> device_residual(residual), device_values(k), device_decoded(elements);
  const DeviceArray<std::uint32_t> device_counts(groups);
  const DeviceArray<std::uint16_t> device_offsets(k);
  const DeviceArray<std::byte> device_scratch(cuda::kTopKScratchBytes);
  cuda::SumInputs inputs;
  if (!added.host.empty()) {
    inputs = added.fused();
    const std::vector<float> sum = added.sum();
    const std::vector<const float*> both = {sum.data(), residual.data()};
    std::vector<float> x(elements);
    kernels::tree_sum(both, elements, x.data());
    residual = x;
  }
  kernels::topk_select(residual.data(), elements, k, counts.data(), values.data(), offsets.data(), scratch.data());
  cuda::topk_select(inputs, device_residual.get(), elements, k, device_counts.get(), device_values.get(),
                    device_offsets.get(), device_scratch.get(), stream());
  check_equal("counts", device_counts.read(), counts);
  check_equal("offsets", device_offsets.read(), offsets);
  check_equal("values", device_values.read(), values, Nan::kSameBits);
  check_equal("residual", device_residual.read(), residual, Nan::kSameBits);
  device_scratch.read();  // its guard
  if (!added.host.empty()) {
    const DeviceArray<float> before(start), after(elements);
    cuda::topk_select(inputs, {before.get(), after.get()}, elements, k, device_counts.get(), device_values.get(),
                      device_offsets.get(), device_scratch.get(), stream());
    check_equal("values, residual elsewhere", device_values.read(), values, Nan::kSameBits);
    check_equal("residual elsewhere", after.read(), residual, Nan::kSameBits);
    check_equal("residual before", before.read(), start, Nan::kSameBits);
  }
  kernels::topk_decode(bytes_of(counts), bytes_of(values), bytes_of(offsets), k, 0, elements, decoded.data());
  cuda::topk_decode(device_counts.get(), device_values.get(), device_offsets.get(), k, elements, device_decoded.get(),
                    stream());
  check_equal("decoded", device_decoded.read(), decoded, Nan::kSameBits);
}

TEST_CASE("CUDA top-k chooses the CPU's set in the CPU's order") {
  const Inputs nothing({});
  std::size_t combination = 0;
  for (std::size_t elements : sizes()) {
    if (elements == 0) continue;
    for (Values kind : {Values::kGradients, Values::kTies, Values::kDenormal, Values::kSpecial}) {
      const std::vector<float> start = make_values(kind, elements, 16);
      for (std::size_t k : ks_for(elements)) {
        CAPTURE(elements);
        CAPTURE(k);
        CAPTURE(static_cast<int>(kind));
        use_way_of(combination++);
        check_topk(start, nothing, k);
      }
    }
  }
}

TEST_CASE("CUDA top-k adds up to eight inputs to the residual first") {
  in_all_ways([] {
    for (std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8}) {
      for (std::size_t elements : {70, 3 * 4096 + 11}) {
        CAPTURE(n);
        CAPTURE(elements);
        const Inputs added(make_arrays(kFiniteValues[n % 4], n, elements, 17));
        const std::vector<float> start = make_values(kFiniteValues[n % 4], elements, 18);
        check_topk(start, added, 1 + elements / 20);
      }
    }
  });
}

TEST_CASE("CUDA top-k of equal values sends the first ones") {
  in_all_ways([] {
    const Inputs nothing({});
    for (float value : {0.0f, 1.0f}) {
      const std::vector<float> start(2 * 65536 + 4196, value);
      for (std::size_t k : {std::size_t{1}, std::size_t{4096}, std::size_t{65537}, start.size()}) {
        CAPTURE(k);
        check_topk(start, nothing, k);
      }
    }
  });
}

TEST_CASE("CUDA top-k of several groups sends each group's values") {
  in_all_ways([] {
    const std::vector<float> start = make_values(Values::kWild, 3 * 65536 + 8000, 19);
    check_topk(start, Inputs({}), 5000);
    check_topk(start, Inputs({}), 100000);
  });
}

TEST_CASE("CUDA top-k whose values lie in the last group only leaves the others empty") {
  in_all_ways([] {
    const Inputs nothing({});
    std::vector<float> start(3 * 65536 + 4096, 0.001f);
    for (std::size_t i = 0; i < 900; ++i) start[3 * 65536 + 4 * i] = -1.0f - static_cast<float>(i);
    check_topk(start, nothing, 900);
    check_topk(start, nothing, 850);
  });
}

}  // namespace
}  // namespace tributary::twins
