#include "train/image_feed.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"
#include "train/mlp_kernels.h"

namespace tributary::train {

namespace {

constexpr std::size_t kSlots = 2;

// Moves what make() gave into `out`; the error otherwise.
template <class T>
Status take(Result<T> made, T& out) {
  if (!made) return tl::unexpected(made.error());
  out = std::move(*made);
  return {};
}

}  // namespace

Result<ImageFeed> ImageFeed::make(const ImageSet& resident, std::uint32_t max_batch, const CudaDeviceName& device,
                                  cudaStream_t stream) {
  ImageFeed feed(resident, max_batch, device, stream);
  Status status =
      take(DeviceMemory<float>::make(device, std::size_t{max_batch} * resident.image_size(), "a batch"), feed.inputs_);
  const auto then = [&](auto&& step) {
    if (status) status = step();
  };
  then([&] { return take(DeviceMemory<std::uint8_t>::make(device, max_batch, "a batch's labels"), feed.labels_); });
  then([&] { return take(DeviceMemory<float>::make(device, 256, "the pixels' scale"), feed.scale_); });
  for (std::size_t i = 0; i < kSlots && status; ++i) {
    auto used = CudaEvent::make(device);
    if (!used) return tl::unexpected(used.error());
    Slot slot{.host_indices = {}, .indices = {}, .host_images = {}, .images = {}, .used = std::move(*used)};
    then([&] { return take(PinnedMemory<std::uint32_t>::make(device, max_batch, "samples"), slot.host_indices); });
    then([&] { return take(DeviceMemory<std::uint32_t>::make(device, max_batch, "samples"), slot.indices); });
    feed.slots_.push_back(std::move(slot));
  }
  then([&] { return feed.load_scale(resident); });
  then([&] { return feed.load_resident(); });
  if (!status) return tl::unexpected(status.error());
  return feed;
}

Status ImageFeed::load_scale(const ImageSet& set) {
  loaded_scale_ = set.scale;
  return device_.check(
      cudaMemcpyAsync(scale_.data(), loaded_scale_.data(), sizeof loaded_scale_, cudaMemcpyHostToDevice, stream_),
      "copying the pixels' scale to the device");
}

Status ImageFeed::load_resident() {
  std::size_t free = 0, total = 0;
  Status status = device_.check(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (!status) return status;
  if (resident_->pixels.size() + resident_->labels.size() > free / 2) return {};
  auto pixels = DeviceMemory<std::uint8_t>::make(device_, resident_->pixels.size(), "the training images");
  auto labels = DeviceMemory<std::uint8_t>::make(device_, resident_->labels.size(), "the training labels");
  // Others may have taken the memory meanwhile: then the images are sent batch by batch.
  if (!pixels || !labels) return {};
  status = device_.check(cudaMemcpyAsync(pixels->data(), resident_->pixels.data(), resident_->pixels.size(),
                                         cudaMemcpyHostToDevice, stream_),
                         "copying the training images to the device");
  if (!status) return status;
  status = device_.check(cudaMemcpyAsync(labels->data(), resident_->labels.data(), resident_->labels.size(),
                                         cudaMemcpyHostToDevice, stream_),
                         "copying the training labels to the device");
  if (!status) return status;
  resident_pixels_ = std::move(*pixels);
  resident_labels_ = std::move(*labels);
  return {};
}

Status ImageFeed::send_indices(Slot& slot, std::span<const std::uint32_t> samples) {
  std::copy(samples.begin(), samples.end(), slot.host_indices.data());
  return device_.check(cudaMemcpyAsync(slot.indices.data(), slot.host_indices.data(), samples.size_bytes(),
                                       cudaMemcpyHostToDevice, stream_),
                       "copying samples' numbers to the device");
}

Status ImageFeed::send_images(Slot& slot, const ImageSet& set, std::span<const std::uint32_t> samples) {
  const std::size_t size = set.image_size(), pixels = samples.size() * size;
  if (slot.host_images.data() == nullptr) {
    const std::size_t most = max_batch_ * (size + 1);
    if (Status status = take(PinnedMemory<std::uint8_t>::make(device_, most, "images"), slot.host_images); !status) {
      return status;
    }
    if (Status status = take(DeviceMemory<std::uint8_t>::make(device_, most, "images"), slot.images); !status) {
      return status;
    }
  }
  std::uint8_t* out = slot.host_images.data();
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::copy_n(set.pixels.data() + samples[i] * size, size, out + i * size);
    out[pixels + i] = set.labels[samples[i]];
  }
  return device_.check(
      cudaMemcpyAsync(slot.images.data(), out, pixels + samples.size(), cudaMemcpyHostToDevice, stream_),
      "copying images to the device");
}

Status ImageFeed::gather(const ImageSet& set, std::span<const std::uint32_t> samples) {
  TRIB_ASSERT(samples.size() >= 1 && samples.size() <= max_batch_ && set.image_size() == resident_->image_size());
  if (set.scale != loaded_scale_) {
    if (Status status = load_scale(set); !status) return status;
  }
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  // At once, unless the device is two batches behind.
  if (Status status = device_.check(cudaEventSynchronize(slot.used.get()), "waiting for a batch"); !status) {
    return status;
  }
  const bool resident = &set == resident_ && is_resident();
  const std::size_t pixels = samples.size() * set.image_size();
  Status status = resident ? send_indices(slot, samples) : send_images(slot, set, samples);
  if (!status) return status;
  const GatherArgs args{.pixels = resident ? resident_pixels_.data() : slot.images.data(),
                        .labels = resident ? resident_labels_.data() : slot.images.data() + pixels,
                        .indices = resident ? slot.indices.data() : nullptr,
                        .rows = static_cast<std::uint32_t>(samples.size()),
                        .image_size = static_cast<std::uint32_t>(set.image_size()),
                        .scale = scale_.data(),
                        .out = inputs_.data(),
                        .out_labels = labels_.data()};
  launch_gather(args, stream_);
  status = device_.check(cudaGetLastError(), "gathering images");
  if (!status) return status;
  return device_.check(cudaEventRecord(slot.used.get(), stream_), "recording a batch");
}

}  // namespace tributary::train
