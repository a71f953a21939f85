// The trainer's CUDA backend on the first device of this machine: against the CPU's, cuBLAS against our own matrix
// product, and the same bits every time. Without a device, every case fails and says why. (tests/emulation/
// test_cuda_compute.cc has what needs no device: failures, dependencies between streams.)
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/devices/cuda_devices.h"
#include "kernels/cuda_copy.h"
#include "tests/gpu/required_library.h"
#include "tests/unit/train/even_share.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/counter_rng.h"
#include "train/cpu_compute.h"
#include "train/cuda_compute.h"
#include "train/cuda_gemm.h"
#include "train/standalone.h"

namespace tributary::train {
namespace {

constexpr std::uint32_t kMaxBatch = kEvaluationBatch;

void require_device() {
  static const CudaSystem kSystem = inspect_cuda();
  REQUIRE_MESSAGE(!kSystem.devices.empty(), "test_gpu_node needs a CUDA device: " << kSystem.no_devices);
  REQUIRE_MESSAGE(kSystem.devices[0].unusable.empty(), kSystem.devices[0].unusable);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
}

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed, 4, 4);
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = rng.symmetric(i);
  return values;
}

// ---- Matrix products ----

struct Product {
  std::uint32_t m, n, k;
};
constexpr Product kProducts[] = {{1, 1, 1},      {1, 10, 784},   {7, 13, 5},     {64, 64, 16},    {65, 63, 17},
                                 {64, 256, 784}, {256, 784, 64}, {500, 10, 128}, {129, 257, 511}, {1024, 512, 300}};

// C for op(A) op(B) + C, computed by `gemm`.
std::vector<float> multiply(CudaGemm& gemm, cudaStream_t stream, const Product& p, bool transpose_a, bool transpose_b,
                            bool accumulate) {
  const CudaDeviceName device("cuda:0");
  const auto on_device = [&](const std::vector<float>& values) {
    auto memory = DeviceMemory<float>::make(device, values.size(), "a matrix");
    REQUIRE(memory);
    REQUIRE(kernels::cuda::copy_and_wait(memory->data(), values.data(), values.size() * sizeof(float)) == cudaSuccess);
    return std::move(*memory);
  };
  auto a = on_device(random_values(std::size_t{p.m} * p.k, 1));
  auto b = on_device(random_values(std::size_t{p.k} * p.n, 2));
  std::vector<float> result = random_values(std::size_t{p.m} * p.n, 3);
  auto c = on_device(result);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const Status status = gemm.multiply({.transpose_a = transpose_a,
                                       .transpose_b = transpose_b,
                                       .m = p.m,
                                       .n = p.n,
                                       .k = p.k,
                                       .a = a.data(),
                                       .b = b.data(),
                                       .c = c.data(),
                                       .accumulate = accumulate});
  REQUIRE_MESSAGE(status, status.error().message);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  REQUIRE(kernels::cuda::copy_and_wait(result.data(), c.data(), result.size() * sizeof(float)) == cudaSuccess);
  return result;
}

std::vector<double> expected_product(const Product& p, bool transpose_a, bool transpose_b, bool accumulate) {
  const auto a = random_values(std::size_t{p.m} * p.k, 1), b = random_values(std::size_t{p.k} * p.n, 2),
             c = random_values(std::size_t{p.m} * p.n, 3);
  std::vector<double> result(c.size());
  for (std::uint32_t i = 0; i < p.m; ++i) {
    for (std::uint32_t j = 0; j < p.n; ++j) {
      double sum = accumulate ? c[std::size_t{i} * p.n + j] : 0.0;
      for (std::uint32_t l = 0; l < p.k; ++l) {
        sum += static_cast<double>(a[transpose_a ? std::size_t{l} * p.m + i : std::size_t{i} * p.k + l]) *
               b[transpose_b ? std::size_t{j} * p.k + l : std::size_t{l} * p.n + j];
      }
      result[std::size_t{i} * p.n + j] = sum;
    }
  }
  return result;
}

void check_products(CudaGemm& gemm, cudaStream_t stream) {
  for (const Product& p : kProducts) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          CAPTURE(p.m);
          CAPTURE(p.n);
          CAPTURE(p.k);
          CAPTURE(transpose_a);
          CAPTURE(transpose_b);
          const auto found = multiply(gemm, stream, p, transpose_a, transpose_b, accumulate);
          CHECK(found == multiply(gemm, stream, p, transpose_a, transpose_b, accumulate));
          const auto expected = expected_product(p, transpose_a, transpose_b, accumulate);
          // k roundings of terms below 1; TF32 would be wrong by a thousand times more.
          const double bound = 1e-7 * (4.0 + std::sqrt(static_cast<double>(p.k)) * 4.0);
          double worst = 0.0;
          for (std::size_t i = 0; i < found.size(); ++i) worst = std::max(worst, std::abs(found[i] - expected[i]));
          CHECK(worst <= bound);
        }
      }
    }
  }
}

TEST_CASE("our own matrix product is right to fp32's rounding, and the same bits every time") {
  require_device();
  auto stream = CudaStream::make(CudaDeviceName("cuda:0"));
  REQUIRE(stream);
  check_products(*make_own_gemm(CudaDeviceName("cuda:0"), stream->get()), stream->get());
}

TEST_CASE("cuBLAS is right to fp32's rounding, and the same bits every time") {
  require_device();
  auto stream = CudaStream::make(CudaDeviceName("cuda:0"));
  REQUIRE(stream);
  auto gemm = make_cublas_gemm(CudaDeviceName("cuda:0"), stream->get());
  if (!gemm) {
    testing::skip_without("cublas", gemm.error());
    return;
  }
  MESSAGE((*gemm)->name());
  check_products(**gemm, stream->get());
}

// ---- The whole backend ----

// Parameters and gradients in shared mappings, as a session has them.
class Memory {
 public:
  explicit Memory(const MlpShape& shape) : shape_(shape) {
    std::size_t elements = 0;
    for (const TensorSpec& tensor : shape.tensors()) elements += (tensor.elements() + 15) / 16 * 16;
    bytes_ = (elements * sizeof(float) + 4095) / 4096 * 4096;
    for (float*& flat : flat_) {
      void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      REQUIRE(at != MAP_FAILED);
      flat = static_cast<float*>(at);
    }
    std::size_t offset = 0;
    for (std::size_t t = 0; t < shape.tensors().size(); ++t) {
      parameters.push_back(flat_[0] + offset);
      gradients.push_back(flat_[1] + offset);
      shape.initialise(3, t, {flat_[0] + offset, shape.tensors()[t].elements()});
      offset += (shape.tensors()[t].elements() + 15) / 16 * 16;
    }
  }
  ~Memory() {
    for (float* flat : flat_) ::munmap(flat, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  RankMemory rank_memory() const { return {.parameters = parameters, .gradients = gradients, .lasting = true}; }
  std::vector<std::vector<float>> all_gradients() const {
    std::vector<std::vector<float>> all;
    for (std::size_t t = 0; t < gradients.size(); ++t) {
      all.emplace_back(gradients[t], gradients[t] + shape_.tensors()[t].elements());
    }
    return all;
  }

  std::vector<const float*> parameters;
  std::vector<float*> gradients;

 private:
  const MlpShape& shape_;
  float* flat_[2] = {};
  std::size_t bytes_ = 0;
};

const ImageSet& training_set() {
  static const ImageSet kSet = synthetic(2000, 1);
  return kSet;
}

struct Samples : EvenShare {
  Samples(std::uint32_t count, std::uint32_t micro_batches) : EvenShare(numbers(count), micro_batches) {}

 private:
  static std::vector<std::uint32_t> numbers(std::uint32_t count) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < count; ++i) all.push_back((i * 37) % training_set().count);
    return all;
  }
};

BatchStats run(ModelCompute& compute, const Memory& memory, const Share& share, const TensorReady& ready = {}) {
  REQUIRE(compute.bind(memory.rank_memory()));
  const auto stats = compute.gradient(share, nullptr, ready);
  REQUIRE_MESSAGE(stats, stats.error().message);
  REQUIRE(*stats);
  compute.unbind();
  return **stats;
}

TEST_CASE("loss, predictions and gradients on the device are the CPU's up to rounding, and the same bits every time") {
  require_device();
  for (const std::vector<std::uint32_t>& sizes :
       {std::vector<std::uint32_t>{20, 10}, std::vector<std::uint32_t>{20, 256, 128, 10},
        std::vector<std::uint32_t>{20, 1, 77, 10}, std::vector<std::uint32_t>{20, 1025, 333, 64, 10}}) {
    const auto shape = MlpShape::make(sizes, kMaxBatch);
    REQUIRE(shape);
    const auto cpu = make_cpu_compute(*shape, training_set(), "");
    REQUIRE(cpu);
    const auto cuda = make_cuda_compute(*shape, training_set(), 0);
    REQUIRE_MESSAGE(cuda, cuda.error().message);
    CHECK((*cuda)->info().device.starts_with("cuda:0 "));
    for (const auto& [count, micro_batches] : {std::pair{1u, 1u}, std::pair{63u, 1u}, std::pair{64u, 1u},
                                               std::pair{257u, 3u}, std::pair{499u, 2u}, std::pair{0u, 1u}}) {
      CAPTURE(sizes.size());
      CAPTURE(count);
      Memory memory(*shape);
      const Samples samples(count, micro_batches);
      const BatchStats expected = run(**cpu, memory, samples.share);
      const auto expected_gradients = memory.all_gradients();
      const BatchStats found = run(**cuda, memory, samples.share);
      const auto gradients = memory.all_gradients();
      CHECK(found.samples == expected.samples);
      CHECK(found.correct == expected.correct);
      CHECK(found.loss_sum == doctest::Approx(expected.loss_sum).epsilon(1e-5));
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        float largest = 0.0f, worst = 0.0f;
        for (const float value : expected_gradients[t]) largest = std::max(largest, std::abs(value));
        for (std::size_t i = 0; i < gradients[t].size(); ++i) {
          worst = std::max(worst, std::abs(gradients[t][i] - expected_gradients[t][i]));
        }
        CAPTURE(t);
        CHECK(worst <= 1e-5f * (largest + 1.0f));
      }
      for (int again = 0; again < 3; ++again) {
        const BatchStats repeated = run(**cuda, memory, samples.share);
        CHECK(repeated.loss_sum == found.loss_sum);
        CHECK(memory.all_gradients() == gradients);
      }
    }
  }
}

TEST_CASE("a tensor is ready on the host as soon as it is said to be, from another thread and one after another") {
  require_device();
  const auto shape = MlpShape::make({20, 2048, 2048, 10}, kMaxBatch);
  REQUIRE(shape);
  const auto cuda = make_cuda_compute(*shape, training_set(), 0);
  REQUIRE_MESSAGE(cuda, cuda.error().message);
  Memory memory(*shape);
  const Samples samples(400, 2);
  std::vector<std::size_t> order;
  std::vector<std::vector<float>> at_ready(shape->tensors().size());
  std::atomic<bool> other_thread = false;
  const auto caller = std::this_thread::get_id();
  run(**cuda, memory, samples.share, [&](std::size_t tensor) {
    other_thread = std::this_thread::get_id() != caller;
    order.push_back(tensor);
    at_ready[tensor].assign(memory.gradients[tensor], memory.gradients[tensor] + shape->tensors()[tensor].elements());
  });
  CHECK(other_thread);
  CHECK(order == std::vector<std::size_t>{4, 5, 2, 3, 0, 1});
  CHECK(at_ready == memory.all_gradients());
}

void check_training(const JobConfig& job) {
  require_device();
  StandaloneOptions options;
  options.job = job;
  options.job.name = "gpu";
  options.job.train.hidden = {64, 32};
  options.job.train.global_batch = 128;
  options.ranks = 4;
  const ImageSet test = synthetic(1000, 2);
  const auto on_cpu = train_standalone(options, training_set(), &test, nullptr);
  REQUIRE(on_cpu);
  options.device.kind = DeviceKind::kCuda;
  const auto first = train_standalone(options, training_set(), &test, nullptr);
  REQUIRE_MESSAGE(first, first.error().message);
  const auto second = train_standalone(options, training_set(), &test, nullptr);
  REQUIRE(second);
  CHECK(first->digest == second->digest);
  CHECK(std::abs(first->test->accuracy() - on_cpu->test->accuracy()) <= 0.01);
  CHECK(on_cpu->test->accuracy() > 0.95);
}

TEST_CASE("training on the device learns what the CPU learns, and ends in the same bits every time") {
  JobConfig job;
  job.optimizer.name = "adamw";
  job.optimizer.lr = 0.01;
  job.train.epochs = 4;
  check_training(job);
}

TEST_CASE("local steps on the device learn what they learn on the CPU, and end in the same bits every time") {
  JobConfig job;
  job.mode = Mode::kLocalSgd;
  job.optimizer.lr = 1.0;
  job.local.steps = 5;
  job.local.optimizer.name = "adamw";
  job.local.optimizer.lr = 0.01;
  job.train.epochs = 6;
  check_training(job);
}

}  // namespace
}  // namespace tributary::train
