#include <doctest/doctest.h>

#include "bench/optimizer_bench.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::optimizer_bench_test {

namespace {

OptimizerBenchOptions small() {
  OptimizerBenchOptions options{.elements = 10000, .chunk_bytes = 4096, .seconds = 1e-3};
  return options;
}

TEST_CASE("the optimizer benchmark reports consistent figures for every optimizer and number of threads") {
  for (const std::string& name : testing::stepping_optimizers()) {
    for (unsigned threads : {1u, 3u}) {
      CAPTURE(name);
      CAPTURE(threads);
      OptimizerBenchOptions options = small();
      options.optimizer = name;
      options.threads = threads;
      const Result<nlohmann::json> result = run_optimizer_bench(options);
      REQUIRE(result.has_value());
      const nlohmann::json& json = *result;
      CHECK(json["optimizer"] == name);
      CHECK(json["threads"] == threads);
      CHECK(json["clock"] == "thread_cpu");
      CHECK(json["repetitions"].get<std::size_t>() >= 5);
      CHECK(json["memcpy_gb_per_s"].get<double>() > 0);
      REQUIRE(json["results"].size() == 4);
      const auto optimizer = kernels::make_optimizer(name, kernels::options_of(name, {{"momentum", 0.9}}));
      const double arrays = 1 + optimizer->slots();
      for (std::size_t k = 0; k < 4; ++k) {
        const nlohmann::json& row = json["results"][k];
        CHECK(row["inputs"] == options.inputs[k]);
        const double bytes = 4 * (options.inputs[k] + 2 * arrays);
        CHECK(row["bytes_per_parameter"].get<double>() == bytes);
        CHECK(row["gb_per_s"].get<double>() == doctest::Approx(row["parameters_per_s"].get<double>() * bytes / 1e9));
        CHECK(row["stream_gb_per_s"].get<double>() > 0);
        CHECK(row["ratio"].get<double>() > 0);
      }
    }
  }
}

TEST_CASE("the optimizer benchmark refuses impossible options and says what would be right") {
  const auto message = [](auto change) {
    OptimizerBenchOptions options = small();
    change(options);
    const Result<nlohmann::json> result = run_optimizer_bench(options);
    REQUIRE_FALSE(result.has_value());
    CHECK(result.error().code == ErrorCode::kInvalidArgument);
    return result.error().message;
  };
  CHECK(message([](auto& o) { o.optimizer = "adafactor"; }).find("'adafactor'") != std::string::npos);
  CHECK(message([](auto& o) { o.elements = 0; }).find("elements = 0") != std::string::npos);
  CHECK(message([](auto& o) { o.chunk_bytes = 1001; }).find("chunk_bytes = 1001") != std::string::npos);
  CHECK(message([](auto& o) { o.seconds = 0; }).find("seconds") != std::string::npos);
  CHECK(message([](auto& o) { o.threads = 0; }).find("threads = 0") != std::string::npos);
  CHECK(message([](auto& o) { o.inputs = {}; }).find("inputs") != std::string::npos);
  CHECK(message([](auto& o) { o.inputs = {1, 3}; }).find("inputs = 3") != std::string::npos);
}

}  // namespace

}  // namespace tributary::optimizer_bench_test
