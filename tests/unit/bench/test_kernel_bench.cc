#include <doctest/doctest.h>

#include "bench/kernel_bench.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::kernel_bench_test {

namespace {

KernelBenchOptions small() {
  KernelBenchOptions options;
  options.elements = 10000;
  options.chunk_elements = 3000;  // the last chunk is a short one
  options.seconds = 1e-3;
  return options;
}

TEST_CASE("the kernel benchmark reports every kernel beside memcpy") {
  for (double top_k : {0.01, 1.0}) {
    KernelBenchOptions options = small();
    options.top_k = top_k;
    const nlohmann::json& json = required(run_kernel_bench(options));
    CHECK(json["clock"] == "thread_cpu");
    CHECK(json["repetitions"].get<std::size_t>() >= 5);
    CHECK(json["memcpy_gb_per_s"].get<double>() > 0);
    CHECK(json["results"].size() == 21);
    for (const nlohmann::json& row : json["results"]) {
      CAPTURE(row["kernel"].get<std::string>());
      CHECK(row["gb_per_s"].get<double>() > 0);
      CHECK(row["ratio"].get<double>() > 0);
      CHECK(row["bytes_per_value"].get<double>() >= 4);
    }
  }
}

TEST_CASE("the kernel benchmark steps with every optimizer, and counts the bytes of its state") {
  for (const std::string& name : testing::stepping_optimizers()) {
    CAPTURE(name);
    KernelBenchOptions options = small();
    options.optimizer = name;
    const auto result = required(run_kernel_bench(options));
    CHECK(result["optimizer"] == name);
    const nlohmann::json& row = result["results"][19];
    CHECK(row["kernel"] == "step of 2");
    const auto optimizer = kernels::make_optimizer(name, kernels::options_of(name, {{"momentum", 0.9}}));
    CHECK(row["bytes_per_value"].get<double>() == 4 * (2 + 2 * (1 + optimizer->slots())));
  }
}

TEST_CASE("the kernel benchmark refuses impossible options and says what would be right") {
  const auto message = [](auto change) {
    KernelBenchOptions options = small();
    change(options);
    const auto result = failure_of(run_kernel_bench(options));
    CHECK(result.code == ErrorCode::kInvalidArgument);
    return result.message;
  };
  CHECK(testing::contains(message([](auto& o) { o.elements = 0; }), "elements = 0"));
  CHECK(testing::contains(message([](auto& o) { o.chunk_elements = 0; }), "chunk_elements = 0"));
  CHECK(testing::contains(message([](auto& o) { o.chunk_elements = 10001; }), "10000"));
  CHECK(message([](auto& o) { o.optimizer = "adafactor"; }).find("'adafactor'") != std::string::npos);
  CHECK(testing::contains(message([](auto& o) { o.top_k = 0; }), "top_k"));
  CHECK(testing::contains(message([](auto& o) { o.top_k = 1.5; }), "top_k"));
  CHECK(testing::contains(message([](auto& o) { o.seconds = 0; }), "seconds"));
}

}  // namespace

}  // namespace tributary::kernel_bench_test
