#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/files/digest.h"

namespace tributary::digest_test {
namespace {

const std::vector<TensorSpec> kTensors = {{"weight", {2, 3}}, {"bias", {2}}};
const std::vector<float> kWeight = {1.0f, -2.0f, 0.5f, 0.0f, 3.25f, -0.125f};
const std::vector<float> kBias = {7.0f, -7.0f};

std::string digest_of(const std::vector<TensorSpec>& tensors, const std::vector<float>& weight,
                      const std::vector<float>& bias) {
  const float* values[] = {weight.data(), bias.data()};
  return parameters_digest(tensors, values);
}

TEST_CASE("The digest is XXH3-128 over names, shapes and values, as another implementation computes it") {
  // The bytes of the definition in digest.h, hashed with the xxhsum tool (xxhsum -H128).
  CHECK(digest_of(kTensors, kWeight, kBias) == "1034de0f33cb3571319e2c5409b1bd67");
}

TEST_CASE("The digest is the same whether tensors come at once or one by one") {
  ParameterDigest digest;
  digest.add(kTensors[0], kWeight);
  digest.add(kTensors[1], kBias);
  CHECK(digest.hex() == digest_of(kTensors, kWeight, kBias));
}

TEST_CASE("The digest changes with a bit of a value, a name and a shape") {
  const std::string same = digest_of(kTensors, kWeight, kBias);
  auto weight = kWeight;
  weight[3] = -0.0f;  // equal to 0.0 as a number, not as bits
  CHECK(digest_of(kTensors, weight, kBias) != same);
  auto tensors = kTensors;
  tensors[1].name = "offset";
  CHECK(digest_of(tensors, kWeight, kBias) != same);
  tensors = kTensors;
  tensors[0].shape = {3, 2};
  CHECK(digest_of(tensors, kWeight, kBias) != same);
}

TEST_CASE("Names and values cannot run into one another") {
  const std::vector<float> one = {1.0f};
  const float* values[] = {one.data(), one.data()};
  const std::vector<TensorSpec> first = {{"ab", {}}, {"c", {}}};
  const std::vector<TensorSpec> second = {{"a", {}}, {"bc", {}}};
  CHECK(parameters_digest(first, values) != parameters_digest(second, values));
}

}  // namespace
}  // namespace tributary::digest_test
