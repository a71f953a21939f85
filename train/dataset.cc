#include "train/dataset.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

namespace tributary::train {

namespace {

constexpr std::uint32_t kImagesMagic = 0x00000803;
constexpr std::uint32_t kLabelsMagic = 0x00000801;
constexpr unsigned kReadBuffer = 256u << 10;
constexpr unsigned kReadPiece = 64u << 20;  // gzread takes an int-sized length

// Statistics of Fashion-MNIST's training set.
constexpr double kFashionMean = 0.2860;
constexpr double kFashionDeviation = 0.3530;

std::string hex(std::uint32_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

// A file that zlib reads, whether it is compressed or not.
class IdxFile {
 public:
  static Result<IdxFile> open(const std::string& directory, const std::string& name) {
    namespace fs = std::filesystem;
    const fs::path plain = fs::path(directory) / name;
    fs::path path = plain;
    std::error_code ignored;
    if (!fs::exists(path, ignored)) path += ".gz";
    if (!fs::exists(path, ignored)) {
      return fail(ErrorCode::kNotFound, "data set file " + name + " (or " + name + ".gz) is not in directory " +
                                            directory +
                                            "; install it with 'apt-get install dataset-fashion-mnist', or set "
                                            "train.data_dir to the directory that has it");
    }
    IdxFile file;
    file.path_ = path.string();
    errno = 0;
    file.file_.reset(gzopen(file.path_.c_str(), "rb"));
    if (!file.file_) {
      const std::string why = errno != 0 ? std::strerror(errno) : "out of memory";
      return fail(ErrorCode::kIo, "cannot open data set file " + file.path_ + ": " + why);
    }
    gzbuffer(file.file_.get(), kReadBuffer);
    return file;
  }

  const std::string& path() const { return path_; }

  Status read(std::uint8_t* out, std::size_t size, const char* what) {
    std::size_t done = 0;
    while (done < size) {
      const auto piece = static_cast<unsigned>(std::min<std::size_t>(size - done, kReadPiece));
      const int got = gzread(file_.get(), out + done, piece);
      if (got < 0) {
        int code = Z_OK;
        const char* why = gzerror(file_.get(), &code);
        return malformed(std::string("cannot read the ") + what + ": " +
                         (code == Z_ERRNO ? std::strerror(errno) : why));
      }
      if (got == 0) {
        return malformed(std::string("ends after ") + std::to_string(done) + " of " + std::to_string(size) +
                         " bytes of the " + what);
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

  Result<std::uint32_t> read_number(const char* what) {
    std::uint8_t bytes[4];
    if (Status status = read(bytes, sizeof(bytes), what); !status) return tl::unexpected(status.error());
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  Status expect_magic(std::uint32_t expected, const char* kind) {
    const Result<std::uint32_t> magic = read_number("header");
    if (!magic) return tl::unexpected(magic.error());
    if (*magic == expected) return {};
    return malformed("begins with " + hex(*magic) + ", an IDX file of " + kind + " begins with " + hex(expected));
  }

  Status expect_end() {
    std::uint8_t byte;
    const int got = gzread(file_.get(), &byte, 1);
    if (got > 0) return malformed("is longer than its header says");
    // zlib reports a compressed stream that is cut off behind the last image only here, and a wrong checksum as got <
    // 0.
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (got < 0 || code == Z_BUF_ERROR) return malformed("has a damaged end (checksum or compressed data)");
    return {};
  }

  tl::unexpected<Error> malformed(const std::string& what) const {
    return fail(ErrorCode::kMalformed, "data set file " + path_ + " " + what +
                                           "; replace it (apt-get install --reinstall dataset-fashion-mnist)");
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

Status read_images(IdxFile& file, ImageSet& set) {
  if (Status status = file.expect_magic(kImagesMagic, "images"); !status) return status;
  std::uint32_t numbers[3];
  for (std::uint32_t& number : numbers) {
    const Result<std::uint32_t> value = file.read_number("header");
    if (!value) return tl::unexpected(value.error());
    number = *value;
  }
  const auto [count, rows, columns] = numbers;
  if (count == 0 || count > kMaxImages) {
    return file.malformed("claims " + std::to_string(count) + " images, 1 to " + std::to_string(kMaxImages) +
                          " are possible");
  }
  if (rows == 0 || rows > kMaxImageSide || columns == 0 || columns > kMaxImageSide) {
    return file.malformed("claims images of " + std::to_string(rows) + " x " + std::to_string(columns) +
                          " pixels, 1 to " + std::to_string(kMaxImageSide) + " a side are possible");
  }
  set.count = count;
  set.rows = rows;
  set.columns = columns;
  // Grown as the file proves to have them: a header alone must not make us allocate terabytes.
  const std::size_t size = count * set.image_size();
  while (set.pixels.size() < size) {
    const std::size_t begin = set.pixels.size();
    const std::size_t piece = std::min<std::size_t>(size - begin, kReadPiece);
    set.pixels.resize(begin + piece);
    if (Status status = file.read(set.pixels.data() + begin, piece, "pixels"); !status) return status;
  }
  return file.expect_end();
}

Status read_labels(IdxFile& file, ImageSet& set, const std::string& images_path) {
  if (Status status = file.expect_magic(kLabelsMagic, "labels"); !status) return status;
  const Result<std::uint32_t> count = file.read_number("header");
  if (!count) return tl::unexpected(count.error());
  if (*count != set.count) {
    return file.malformed("has " + std::to_string(*count) + " labels, but " + images_path + " has " +
                          std::to_string(set.count) + " images");
  }
  set.labels.resize(*count);
  if (Status status = file.read(set.labels.data(), set.labels.size(), "labels"); !status) return status;
  const auto bad =
      std::find_if(set.labels.begin(), set.labels.end(), [](std::uint8_t label) { return label >= kClasses; });
  if (bad != set.labels.end()) {
    return file.malformed("has label " + std::to_string(*bad) + " at position " +
                          std::to_string(bad - set.labels.begin()) + ", labels are 0 to " +
                          std::to_string(kClasses - 1));
  }
  return file.expect_end();
}

Status check_name(const TrainConfig& config) {
  if (config.dataset == "fashion-mnist") return {};
  return fail(ErrorCode::kConfig, "train.dataset = \"" + config.dataset + "\" is unknown; use \"fashion-mnist\"");
}

}  // namespace

void ImageSet::gather(std::span<const std::uint32_t> samples, float* out, std::uint8_t* out_labels) const {
  const std::size_t size = image_size();
  for (const std::uint32_t sample : samples) {
    const std::uint8_t* image = pixels.data() + sample * size;
    for (std::size_t i = 0; i < size; ++i) out[i] = scale[image[i]];
    out += size;
    *out_labels++ = labels[sample];
  }
}

Result<ImageSet> load_images(const std::string& directory, const std::string& images_name,
                             const std::string& labels_name, double mean, double deviation) {
  Result<IdxFile> images = IdxFile::open(directory, images_name);
  if (!images) return tl::unexpected(images.error());
  Result<IdxFile> labels = IdxFile::open(directory, labels_name);
  if (!labels) return tl::unexpected(labels.error());
  ImageSet set;
  set.path = images->path();
  if (Status status = read_images(*images, set); !status) return tl::unexpected(status.error());
  if (Status status = read_labels(*labels, set, images->path()); !status) return tl::unexpected(status.error());
  for (std::size_t byte = 0; byte < set.scale.size(); ++byte) {
    set.scale[byte] = static_cast<float>((static_cast<double>(byte) / 255.0 - mean) / deviation);
  }
  return set;
}

Result<ImageSet> load_training_set(const TrainConfig& config) {
  if (Status status = check_name(config); !status) return tl::unexpected(status.error());
  return load_images(config.data_dir, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", kFashionMean,
                     kFashionDeviation);
}

Result<ImageSet> load_test_set(const TrainConfig& config, const ImageSet& training) {
  if (Status status = check_name(config); !status) return tl::unexpected(status.error());
  Result<ImageSet> test =
      load_images(config.data_dir, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", kFashionMean, kFashionDeviation);
  if (!test || (test->rows == training.rows && test->columns == training.columns)) return test;
  const auto size = [](const ImageSet& set) {
    return set.path + " has images of " + std::to_string(set.rows) + " x " + std::to_string(set.columns) + " pixels";
  };
  return fail(ErrorCode::kMalformed, "the test images are not of the training images' size: " + size(training) + ", " +
                                         size(*test) + "; put files of one data set into " + config.data_dir);
}

}  // namespace tributary::train
