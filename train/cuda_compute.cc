#include "train/cuda_compute.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/base/assert.h"
#include "train/device_path.h"
#include "train/device_replicas.h"
#include "train/host_staging.h"
#include "train/image_feed.h"
#include "train/mlp_cuda.h"

namespace tributary::train {

namespace {

class CudaCompute final : public ModelCompute {
 public:
  // Parts in the order in which they depend on each other.
  CudaCompute(const ImageSet& training, int index, CudaDeviceName device, DeviceInfo info, CudaStream stream,
              MlpCuda mlp, ImageFeed feed, PinnedMemory<PassSums> sums, CudaEvent computed)
      : training_(training),
        index_(index),
        device_(std::move(device)),
        info_(std::move(info)),
        stream_(std::move(stream)),
        mlp_(std::move(mlp)),
        feed_(std::move(feed)),
        sums_(std::move(sums)),
        computed_(std::move(computed)) {}

  const MlpShape& shape() const override { return mlp_.shape(); }
  const DeviceInfo& info() const override { return info_; }

  Status bind(const RankMemory& memory) override {
    if (Status status = use_device(); !status) return status;
    unbind();
    Status status = memory.place == MemoryPlace::kDevice ? bind_device(memory) : bind_host(memory);
    bound_ = memory;
    return status;
  }
  void unbind() override {
    if (device_path_) device_path_->unbind();
    if (staging_) staging_->unbind();
    path_ = nullptr;
    bound_ = {};
  }

  Result<std::optional<BatchStats>> gradient(const Share& share, const NeedTensor& need,
                                             const TensorReady& ready) override {
    std::uint32_t samples = 0;
    Result<bool> enqueued = enqueue_round(share, need, ready, samples);
    return finished(std::move(enqueued), samples);
  }

  Status begin_local(std::shared_ptr<const kernels::Optimizer> inner, std::uint32_t replicas, bool keeps) override {
    if (Status status = use_device(); !status) return status;
    auto made = DeviceReplicas::make(shape(), device_, stream_.get(), std::move(inner), replicas, keeps);
    if (!made) return tl::unexpected(made.error());
    replicas_ = std::move(*made);
    return {};
  }

  Result<std::optional<BatchStats>> local_round(const LocalRound& round, const NeedTensor& need,
                                                const TensorReady& ready) override {
    TRIB_ASSERT(replicas_ != nullptr);
    std::uint32_t samples = 0;
    Result<bool> enqueued = enqueue_local(round, need, ready, samples);
    return finished(std::move(enqueued), samples);
  }

  Result<BatchStats> evaluate(const ImageSet& set) override {
    Status enqueued = enqueue_evaluation(set);
    if (Status drained = drain(); !drained && enqueued) enqueued = drained;
    if (!enqueued) return tl::unexpected(enqueued.error());
    return stats(set.count);
  }

  Status read_parameters(std::size_t tensor, std::span<float> to) override {
    TRIB_ASSERT(to.size() == shape().tensors()[tensor].elements());
    const float* from = bound_.parameters[tensor];
    if (bound_.place == MemoryPlace::kHost) {
      std::copy_n(from, to.size(), to.data());
      return {};
    }
    if (Status status = use_device(); !status) return status;
    const std::string& name = shape().tensors()[tensor].name;
    const Status copying = device_.check(
        cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()),
        "copying to the host the parameters of", name);
    const Status copied = device_.check(cudaStreamSynchronize(stream_.get()), "waiting for the parameters of", name);
    return copying ? copied : copying;
  }

 private:
  // A path is made when it is first needed: only the one through the host takes memory of the device.
  Status bind_device(const RankMemory& memory) {
    staging_.reset();
    if (!device_path_) {
      auto made = DevicePath::make(shape(), device_);
      if (!made) return tl::unexpected(made.error());
      device_path_ = std::move(*made);
    }
    device_path_->bind(memory);
    path_ = device_path_.get();
    return {};
  }

  Status bind_host(const RankMemory& memory) {
    if (!staging_) {
      auto made = HostStaging::make(shape(), device_);
      if (!made) return tl::unexpected(made.error());
      staging_ = std::move(*made);
    }
    staging_->bind(memory);
    path_ = staging_.get();
    const std::string& unpinned = staging_->unpinned();
    if (!unpinned.empty() && info_.note.find(unpinned) == std::string::npos) {
      info_.note += (info_.note.empty() ? "" : "; ") + unpinned;
    }
    return {};
  }

  Status use_device() { return device_.check(cudaSetDevice(index_), "selecting the device"); }

  // Waits for what was enqueued. Also when the round was abandoned or failed: nothing may touch the bound memory after
  // this.
  Result<std::optional<BatchStats>> finished(Result<bool> enqueued, std::uint32_t samples) {
    if (Status status = drain(); !status && enqueued) enqueued = tl::unexpected(status.error());
    if (!enqueued) return tl::unexpected(enqueued.error());
    if (!*enqueued) return std::optional<BatchStats>();
    return stats(samples);
  }

  // Waits for a tensor, and brings its parameters to where the passes read them.
  MlpCuda::BeforeTensor fetching(const NeedTensor& need) {
    return [this, &need](std::size_t tensor) -> Result<bool> {
      if (need && !need(tensor)) return false;
      if (Status status = path_->fetch(tensor, stream_.get()); !status) return tl::unexpected(status.error());
      return true;
    };
  }

  // Everything of a round up to its last ready(). samples: becomes how many it has. False: `need` abandoned it.
  Result<bool> enqueue_round(const Share& share, const NeedTensor& need, const TensorReady& ready,
                             std::uint32_t& samples) {
    if (Status status = begin(); !status) return tl::unexpected(status.error());
    const MlpCuda::AfterTensor after = [&](std::size_t tensor) { return path_->publish(tensor, stream_.get(), ready); };
    if (share.samples == 0) return enqueue_zeros(need, after);
    return enqueue_pass(share, path_->parameters(), fetching(need), after, true, &samples);
  }

  // The same with local steps. samples: becomes those of all steps.
  Result<bool> enqueue_local(const LocalRound& round, const NeedTensor& need, const TensorReady& ready,
                             std::uint32_t& samples) {
    if (Status status = begin(); !status) return tl::unexpected(status.error());
    if (round.steps == 0) {
      return enqueue_zeros(need, [&](std::size_t tensor) { return path_->publish(tensor, stream_.get(), ready); });
    }
    if (Status status = replicas_->begin(round.replica, round.begins); !status) return tl::unexpected(status.error());
    for (std::uint32_t k = 0; k < round.steps; ++k) {
      const LocalStep step = round.step(k);
      const bool first = k == 0, last = k + 1 == round.steps;
      const std::span<const float* const> parameters = first ? path_->parameters() : replicas_->parameters();
      const MlpCuda::AfterTensor after = [&](std::size_t t) {
        float* gradient = path_->gradients()[t];
        Status status = replicas_->step(t, step.scalars, parameters[t], gradient, step.share.samples);
        if (!status || !last) return status;
        status = replicas_->subtract(t, path_->parameters()[t], gradient);
        return status ? path_->publish(t, stream_.get(), ready) : status;
      };
      const Result<bool> go_on =
          enqueue_pass(step.share, parameters, first ? fetching(need) : MlpCuda::BeforeTensor(), after, last);
      if (!go_on || !*go_on) return go_on;
      samples += step.share.samples;
    }
    replicas_->end();
    return true;
  }

  // A share that is not empty. fetches_sums: it is the round's last. managed: becomes how many samples there was time
  // for.
  Result<bool> enqueue_pass(const Share& share, std::span<const float* const> parameters,
                            const MlpCuda::BeforeTensor& before, const MlpCuda::AfterTensor& after, bool fetches_sums,
                            std::uint32_t* managed = nullptr) {
    std::uint32_t done = 0;
    for (std::uint32_t micro = 0; micro < share.micro_batches; ++micro) {
      if (done > 0 && share.another) {
        // What was enqueued says nothing about time before it is done.
        if (Status status = device_.check(cudaStreamSynchronize(stream_.get()), "waiting for a micro-batch"); !status) {
          return tl::unexpected(status.error());
        }
        if (!share.another()) {
          if (managed != nullptr) *managed = done;
          return enqueue_end(after);
        }
      }
      const std::span<const std::uint32_t> samples = share.micro_batch(micro);
      if (samples.empty()) continue;
      const bool first = done == 0;
      done += static_cast<std::uint32_t>(samples.size());
      const bool last = done == share.samples;
      // Gathered before the first tensor is waited for: it runs while answers are still on their way.
      Status status = feed_.gather(training_, samples);
      if (!status) return tl::unexpected(status.error());
      const Result<bool> go_on = mlp_.forward(feed_.inputs(), static_cast<std::uint32_t>(samples.size()), parameters,
                                              first ? before : MlpCuda::BeforeTensor());
      if (!go_on || !*go_on) return go_on;
      status = mlp_.loss(feed_.labels(), share.scale());
      if (status && last && fetches_sums) status = fetch_sums();
      if (status) {
        status = mlp_.backward(parameters, path_->gradients(), !first, last ? after : MlpCuda::AfterTensor());
      }
      if (!status) return tl::unexpected(status.error());
    }
    TRIB_ASSERT(done == share.samples);
    if (managed != nullptr) *managed = done;
    return true;
  }

  // All gradients are in their place.
  Result<bool> enqueue_end(const MlpCuda::AfterTensor& after) {
    Status status = fetch_sums();
    for (std::size_t l = shape().layers(); status && l-- > 0;) {
      status = after(2 * l);
      if (status) status = after(2 * l + 1);
    }
    if (!status) return tl::unexpected(status.error());
    return true;
  }

  // A rank without samples.
  Result<bool> enqueue_zeros(const NeedTensor& need, const MlpCuda::AfterTensor& after) {
    const std::vector<TensorSpec>& tensors = shape().tensors();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (need && !need(t)) return false;
    }
    Status status = fetch_sums();
    for (std::size_t l = shape().layers(); l-- > 0;) {
      for (const std::size_t t : {2 * l, 2 * l + 1}) {
        if (!status) break;
        const std::size_t bytes = tensors[t].elements() * sizeof(float);
        status = device_.check(cudaMemsetAsync(path_->gradients()[t], 0, bytes, stream_.get()),
                               "clearing the gradient of", tensors[t].name);
        if (status) status = after(t);
      }
    }
    if (!status) return tl::unexpected(status.error());
    return true;
  }

  Status enqueue_evaluation(const ImageSet& set) {
    if (Status status = begin(); !status) return status;
    for (std::size_t t = 0; t < shape().tensors().size(); ++t) {
      if (Status status = path_->fetch(t, stream_.get()); !status) return status;
    }
    std::vector<std::uint32_t> samples;
    for (std::uint32_t first = 0; first < set.count; first += kEvaluationBatch) {
      samples.resize(std::min(kEvaluationBatch, set.count - first));
      std::iota(samples.begin(), samples.end(), first);
      if (Status status = feed_.gather(set, samples); !status) return status;
      const auto batch = static_cast<std::uint32_t>(samples.size());
      const Result<bool> enqueued = mlp_.forward(feed_.inputs(), batch, path_->parameters(), nullptr);
      if (!enqueued) return tl::unexpected(enqueued.error());
      if (Status status = mlp_.loss(feed_.labels()); !status) return status;
    }
    return fetch_sums();
  }

  Status begin() {
    TRIB_ASSERT(path_ != nullptr);
    if (Status status = use_device(); !status) return status;
    return mlp_.begin_pass();
  }

  Status fetch_sums() {
    return device_.check(
        cudaMemcpyAsync(sums_.data(), mlp_.sums(), sizeof(PassSums), cudaMemcpyDeviceToHost, stream_.get()),
        "copying the loss to the host");
  }

  // Waits for everything that was enqueued, whatever came of it.
  Status drain() {
    Status computed = device_.check(cudaEventRecord(computed_.get(), stream_.get()), "recording the end of a pass");
    const Status copied = path_->drain();
    if (computed) computed = device_.check(cudaEventSynchronize(computed_.get()), "waiting for the end of a pass");
    if (!computed) {
      cudaStreamSynchronize(stream_.get());
      cudaGetLastError();
    }
    return copied ? computed : copied;
  }

  BatchStats stats(std::uint32_t samples) const {
    return {.loss_sum = sums_.data()->loss, .correct = sums_.data()->correct, .samples = samples};
  }

  const ImageSet& training_;
  int index_;
  CudaDeviceName device_;
  DeviceInfo info_;
  CudaStream stream_;
  MlpCuda mlp_;
  ImageFeed feed_;
  std::unique_ptr<HostStaging> staging_;  // null: not needed yet, or no more
  std::unique_ptr<DevicePath> device_path_;
  std::unique_ptr<DeviceReplicas> replicas_;  // null without local steps
  GradientPath* path_ = nullptr;              // the one of the two that is bound
  RankMemory bound_;
  PinnedMemory<PassSums> sums_;  // of the last pass
  CudaEvent computed_;
};

}  // namespace

Result<std::unique_ptr<ModelCompute>> make_cuda_compute(const MlpShape& shape, const ImageSet& training, int index) {
  cudaDeviceProp properties{};
  CudaDeviceName device("cuda:" + std::to_string(index));
  Status status = device.check(cudaGetDeviceProperties(&properties, index), "reading the properties");
  if (!status) return tl::unexpected(status.error());
  device = CudaDeviceName(device.text() + " " + properties.name);
  status = device.check(cudaSetDevice(index), "selecting the device");
  if (!status) return tl::unexpected(status.error());
  auto stream = CudaStream::make(device);
  if (!stream) return tl::unexpected(stream.error());

  DeviceInfo info{.device = device.text(), .blas = {}, .note = {}, .cuda = index};
  auto gemm = make_cublas_gemm(device, stream->get());
  if (!gemm) info.note = gemm.error().message;
  std::unique_ptr<CudaGemm> product = gemm ? std::move(*gemm) : make_own_gemm(device, stream->get());
  info.blas = product->name();

  auto mlp = MlpCuda::make(shape, device, stream->get(), std::move(product));
  if (!mlp) return tl::unexpected(mlp.error());
  auto feed = ImageFeed::make(training, shape.max_batch(), device, stream->get());
  if (!feed) return tl::unexpected(feed.error());
  auto sums = PinnedMemory<PassSums>::make(device, 1, "the loss");
  if (!sums) return tl::unexpected(sums.error());
  auto computed = CudaEvent::make(device);
  if (!computed) return tl::unexpected(computed.error());
  return std::make_unique<CudaCompute>(training, index, device, std::move(info), std::move(*stream), std::move(*mlp),
                                       std::move(*feed), std::move(*sums), std::move(*computed));
}

}  // namespace tributary::train
