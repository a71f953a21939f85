#include <doctest/doctest.h>
#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "train/dataset.h"

namespace tributary::train::dataset_test {
namespace {

using Bytes = std::vector<std::uint8_t>;

void append_number(Bytes& bytes, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(number >> shift));
}

// Three images of 2 x 2 pixels.
Bytes images_file() {
  Bytes bytes;
  for (const std::uint32_t number : {0x803u, 3u, 2u, 2u}) append_number(bytes, number);
  for (std::uint8_t pixel = 0; pixel < 12; ++pixel) bytes.push_back(static_cast<std::uint8_t>(pixel * 20));
  return bytes;
}
Bytes labels_file() {
  Bytes bytes;
  for (const std::uint32_t number : {0x801u, 3u}) append_number(bytes, number);
  bytes.insert(bytes.end(), {7, 0, 9});
  return bytes;
}

class Directory : public testing::TempDir {
 public:
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(*this / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  void write_compressed(const std::string& name, const Bytes& bytes) const {
    gzFile file = gzopen((*this / name).c_str(), "wb");
    REQUIRE(file != nullptr);
    CHECK(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) == static_cast<int>(bytes.size()));
    CHECK(gzclose(file) == Z_OK);
  }
  Bytes read(const std::string& name) const {
    std::ifstream file(*this / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
};

Result<ImageSet> load(const Directory& directory) {
  return load_images(directory.path(), "images", "labels", 0.5, 0.25);
}

std::string refusal(const Directory& directory, const Bytes& images, const Bytes& labels) {
  directory.write("images", images);
  directory.write("labels", labels);
  const auto set = failure_of(load(directory));
  CHECK(set.code == ErrorCode::kMalformed);
  CHECK(testing::contains(set.message, directory.path()));
  return set.message;
}

bool has(const std::string& text, const std::string& part) {
  const bool found = testing::contains(text, part);
  if (!found) MESSAGE("'" << part << "' is not in: " << text);
  return found;
}

TEST_CASE("Plain IDX files are read") {
  const Directory directory;
  directory.write("images", images_file());
  directory.write("labels", labels_file());
  const auto set = required(load(directory));
  CHECK(set.count == 3);
  CHECK(set.rows == 2);
  CHECK(set.columns == 2);
  CHECK(set.pixels.size() == 12);
  CHECK(set.pixels[11] == 220);
  CHECK(set.labels == Bytes{7, 0, 9});
}

TEST_CASE("Compressed IDX files are read, and plain ones win over them") {
  const Directory directory;
  directory.write_compressed("images.gz", images_file());
  directory.write_compressed("labels.gz", labels_file());
  Result<ImageSet> set = load(directory);
  REQUIRE(set.has_value());
  CHECK(set->labels == Bytes{7, 0, 9});
  Bytes other = labels_file();
  other.back() = 1;
  directory.write("labels", other);
  set = load(directory);
  REQUIRE(set.has_value());
  CHECK(set->labels == Bytes{7, 0, 1});
}

TEST_CASE("A gathered batch has normalised pixels and labels in the order asked for") {
  const Directory directory;
  directory.write("images", images_file());
  directory.write("labels", labels_file());
  const auto set = required(load(directory));
  float pixels[8];
  std::uint8_t labels[2];
  const std::uint32_t samples[] = {2, 0};
  set.gather(samples, pixels, labels);
  CHECK(labels[0] == 9);
  CHECK(labels[1] == 7);
  CHECK(pixels[0] == doctest::Approx((8 * 20 / 255.0 - 0.5) / 0.25));
  CHECK(pixels[3] == doctest::Approx((11 * 20 / 255.0 - 0.5) / 0.25));
  CHECK(pixels[4] == doctest::Approx(-2.0));
}

TEST_CASE("A missing file is named with its directory and the cure") {
  const Directory directory;
  directory.write("images", images_file());
  const auto set = failure_of(load(directory));
  CHECK(set.code == ErrorCode::kNotFound);
  CHECK(has(set.message, "labels"));
  CHECK(has(set.message, directory.path()));
  CHECK(has(set.message, "apt-get install dataset-fashion-mnist"));
  CHECK(has(set.message, "train.data_dir"));
}

TEST_CASE("An unknown data set is refused by name") {
  TrainConfig config;
  config.dataset = "imagenet";
  for (const auto& set : {load_training_set(config), load_test_set(config, ImageSet())}) {
    REQUIRE_FALSE(set.has_value());
    CHECK(set.error().code == ErrorCode::kConfig);
    CHECK(has(set.error().message, "\"imagenet\""));
    CHECK(has(set.error().message, "\"fashion-mnist\""));
  }
}

TEST_CASE("Test images of another size than the training images are refused, naming both") {
  const Directory directory;
  TrainConfig config;
  config.data_dir = directory.path();
  directory.write("train-images-idx3-ubyte", images_file());
  directory.write("train-labels-idx1-ubyte", labels_file());
  directory.write("t10k-labels-idx1-ubyte", labels_file());
  Bytes wide;  // as many bytes in an image, and other sides
  for (const std::uint32_t number : {0x803u, 3u, 1u, 4u}) append_number(wide, number);
  wide.resize(16 + 12);
  directory.write("t10k-images-idx3-ubyte", wide);
  const auto training = required(load_training_set(config));
  const auto test = failure_of(load_test_set(config, training));
  CHECK(test.code == ErrorCode::kMalformed);
  for (const char* words :
       {"train-images-idx3-ubyte has images of 2 x 2", "t10k-images-idx3-ubyte has images of 1 x 4"})
    CHECK(has(test.message, words));
  directory.write("t10k-images-idx3-ubyte", images_file());
  CHECK(load_test_set(config, training));
}

TEST_CASE("Files of the wrong kind are refused with both magic numbers") {
  const Directory directory;
  const std::string message = refusal(directory, labels_file(), labels_file());
  CHECK(has(message, "0x00000801"));
  CHECK(has(message, "0x00000803"));
  CHECK(has(refusal(directory, images_file(), images_file()), "labels"));
}

TEST_CASE("Files cut off anywhere are refused") {
  const Directory directory;
  const Bytes images = images_file();
  for (std::size_t size = 0; size < images.size(); ++size) {
    CHECK(has(
        refusal(directory, Bytes(images.begin(), images.begin() + static_cast<std::ptrdiff_t>(size)), labels_file()),
        "ends after"));
  }
  const Bytes labels = labels_file();
  for (std::size_t size = 0; size < labels.size(); ++size) {
    CHECK(has(
        refusal(directory, images_file(), Bytes(labels.begin(), labels.begin() + static_cast<std::ptrdiff_t>(size))),
        "ends after"));
  }
}

TEST_CASE("Files that go on after their last image are refused") {
  const Directory directory;
  Bytes images = images_file();
  images.push_back(0);
  CHECK(has(refusal(directory, images, labels_file()), "longer than its header says"));
}

TEST_CASE("A damaged compressed file is refused") {
  const Directory directory;
  directory.write_compressed("images.gz", images_file());
  directory.write_compressed("labels.gz", labels_file());
  const Bytes whole = directory.read("images.gz");
  const auto check_refused = [&](const Bytes& bytes) {
    directory.write("images.gz", bytes);
    const auto set = failure_of(load(directory));
    CHECK(set.code == ErrorCode::kMalformed);
    CHECK(has(set.message, "images.gz"));
  };
  check_refused(Bytes(whole.begin(), whole.end() - 9));  // the stream's end and its checksum
  Bytes flipped = whole;
  flipped[flipped.size() - 6] ^= 0x40;  // in the checksum
  check_refused(flipped);
}

TEST_CASE("Absurd sizes in a header are refused before memory is asked for") {
  const Directory directory;
  const auto with = [](std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
    Bytes bytes;
    for (const std::uint32_t number : {0x803u, count, rows, columns}) append_number(bytes, number);
    return bytes;
  };
  CHECK(has(refusal(directory, with(0xffffffff, 28, 28), labels_file()), "claims 4294967295 images"));
  CHECK(has(refusal(directory, with(0, 28, 28), labels_file()), "claims 0 images"));
  CHECK(has(refusal(directory, with(3, 0, 28), labels_file()), "0 x 28"));
  CHECK(has(refusal(directory, with(3, 28, 99999), labels_file()), "28 x 99999"));
  CHECK(has(refusal(directory, with(kMaxImages, kMaxImageSide, kMaxImageSide), labels_file()), "ends after"));
}

TEST_CASE("Labels that do not fit the images or the classes are refused") {
  const Directory directory;
  Bytes labels = labels_file();
  labels[7] = 2;
  const std::string message = refusal(directory, images_file(), labels);
  CHECK(has(message, "2 labels"));
  CHECK(has(message, "3 images"));
  labels = labels_file();
  labels[9] = 10;
  CHECK(has(refusal(directory, images_file(), labels), "label 10 at position 1"));
}

}  // namespace
}  // namespace tributary::train::dataset_test
