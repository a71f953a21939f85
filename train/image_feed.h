// ImageFeed: images of a set, normalised, in device memory, for one batch after another. The training set lies on the
// device as bytes if it fits, so that only the samples' numbers travel; images of other sets are copied batch by batch.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "train/cuda_util.h"
#include "train/dataset.h"

namespace tributary::train {

// Thread rule: one thread at a time. Errors: kDevice.
class ImageFeed {
 public:
  // For the current device, enqueues everything on `stream`. `resident`: the set to keep there, if it takes no more
  // than half of the free memory; it must outlive this.
  static Result<ImageFeed> make(const ImageSet& resident, std::uint32_t max_batch, const CudaDeviceName& device,
                                cudaStream_t stream);

  bool is_resident() const { return resident_pixels_.data() != nullptr; }

  // Enqueues: images of `samples` into inputs() and their labels into labels(). Images of `set` have the size of the
  // resident ones. What it is given is copied before it returns.
  Status gather(const ImageSet& set, std::span<const std::uint32_t> samples);
  const float* inputs() const { return inputs_.data(); }
  const std::uint8_t* labels() const { return labels_.data(); }

 private:
  // The host fills one while the device still reads another.
  struct Slot {
    PinnedMemory<std::uint32_t> host_indices;
    DeviceMemory<std::uint32_t> indices;
    PinnedMemory<std::uint8_t> host_images;  // pixels, then labels; made at the first use
    DeviceMemory<std::uint8_t> images;
    CudaEvent used;  // by the device
  };

  ImageFeed(const ImageSet& resident, std::uint32_t max_batch, const CudaDeviceName& device, cudaStream_t stream)
      : resident_(&resident), max_batch_(max_batch), device_(device), stream_(stream) {}
  Status load_scale(const ImageSet& set);
  Status load_resident();
  Status send_indices(Slot& slot, std::span<const std::uint32_t> samples);
  Status send_images(Slot& slot, const ImageSet& set, std::span<const std::uint32_t> samples);

  const ImageSet* resident_;
  std::uint32_t max_batch_;
  CudaDeviceName device_;
  cudaStream_t stream_;
  DeviceMemory<std::uint8_t> resident_pixels_, resident_labels_;
  DeviceMemory<float> scale_;
  std::array<float, 256> loaded_scale_{};  // what scale_ holds
  DeviceMemory<float> inputs_;
  DeviceMemory<std::uint8_t> labels_;
  std::vector<Slot> slots_;
  std::size_t next_slot_ = 0;
};

}  // namespace tributary::train
