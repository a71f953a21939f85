// Image data sets in the IDX format (LeCun's MNIST files), gzip'ed or not, read with every header and size checked.
//
//   images: 0x00000803 | count | rows | columns | count * rows * columns bytes        (numbers: 32 bits, big-endian)
//   labels: 0x00000801 | count | count bytes
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary::train {

inline constexpr std::uint32_t kClasses = 10;
// Bounds on what a file may claim, so that a damaged header cannot ask for absurd amounts of memory.
inline constexpr std::uint32_t kMaxImages = 10'000'000;
inline constexpr std::uint32_t kMaxImageSide = 1024;

// Pixels stay bytes, a quarter of the memory of floats; ImageSet::gather turns those of a batch into floats.
struct ImageSet {
  std::uint32_t count = 0, rows = 0, columns = 0;
  std::vector<std::uint8_t> pixels;  // count * rows * columns
  std::vector<std::uint8_t> labels;  // count, each below kClasses

  std::string path;  // of the images
  std::size_t image_size() const { return std::size_t{rows} * columns; }
  // Writes the normalised images of `samples` one after another into `out`, and their labels into `out_labels`.
  void gather(std::span<const std::uint32_t> samples, float* out, std::uint8_t* out_labels) const;

  std::array<float, 256> scale{};  // byte -> (byte / 255 - mean) / standard deviation
};

// Loads the training set that the job names. kNotFound names the missing file, the directory and the cure; kMalformed
// names the file and its fault; kConfig for a data set that this trainer does not know.
Result<ImageSet> load_training_set(const TrainConfig& config);
// Loads the test set. Its images must be as large as those of `training`; else kMalformed names both files and sizes.
Result<ImageSet> load_test_set(const TrainConfig& config, const ImageSet& training);

// Loads two IDX files, each `name` or `name`.gz in `directory`.
Result<ImageSet> load_images(const std::string& directory, const std::string& images_name,
                             const std::string& labels_name, double mean, double deviation);

}  // namespace tributary::train
