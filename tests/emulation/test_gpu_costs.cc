// bench gpu-costs on the emulation of the CUDA runtime: that it asks for nothing that CUDA leaves undefined, gives
// everything back, and says what failed. Its figures mean nothing here.
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "bench/gpu/gpu_costs.h"
#include "tests/emulation/runtime/emulated_runtime.h"

namespace tributary::bench {
namespace {

GpuCostsOptions small() {
  GpuCostsOptions options{.repetitions = 2, .sizes = {4096, 65536}, .link_bytes = 65536};
  return options;
}

TEST_CASE("bench gpu-costs measures each call, and the link in every way") {
  for (const std::uint32_t seed : {1u, 7u}) {
    emulation::start_runtime({.seed = seed});
    const auto out = run_gpu_costs(small());
    REQUIRE_MESSAGE(out, (out ? "" : out.error().message));
    for (const char* call : {"launch", "copy", "record", "wait", "host_function", "launch_and_wait"}) {
      CHECK(out->at("calls_us").at(call).get<double>() > 0.0);
    }
    CHECK(out->at("host_function_gap_us").is_number());
    std::set<std::string> ways;
    for (const auto& row : out->at("links")) {
      CHECK(row.at("gb_per_s").get<double>() > 0.0);
      nlohmann::ordered_json way = row;
      way.erase("gb_per_s");
      ways.insert(way.dump());
    }
    // Two sizes, three directions; callbacks with pinned memory only.
    CHECK(ways.size() == 2 * 3 * 3);
    CHECK(out->at("links").size() == ways.size());
    CHECK(emulation::runtime_counts().alive == 0);
    CHECK(emulation::runtime_counts().registered == 0);
  }
}

TEST_CASE("bench gpu-costs says what failed, and gives back what it had") {
  emulation::start_runtime({.seed = 1});
  REQUIRE(run_gpu_costs(small()));
  const std::size_t calls = emulation::runtime_counts().calls;
  for (std::size_t call = 1; call < calls; call += 1 + call / 4) {
    CAPTURE(call);
    emulation::start_runtime({.seed = 1, .failing_call = call});
    const auto out = run_gpu_costs(small());
    if (out) continue;  // it was one that gives back
    CHECK_MESSAGE(out.error().message.starts_with("CUDA: "), out.error().message);
    CHECK(emulation::runtime_counts().registered == 0);
  }
}

TEST_CASE("bench gpu-costs refuses sizes and repetitions that make no sense") {
  GpuCostsOptions options = small();
  options.sizes = {0};
  CHECK(run_gpu_costs(options).error().code == ErrorCode::kInvalidArgument);
  options = small();
  options.repetitions = 0;
  CHECK(run_gpu_costs(options).error().message.find("repetitions = 0; give 1 to 1000") != std::string::npos);
}

}  // namespace
}  // namespace tributary::bench
