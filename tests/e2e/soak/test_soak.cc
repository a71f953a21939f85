// Long-lived daemons do not grow: a short soak.
#include "bench/pushpull/pushpull.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/soak/soak.h"
#include "tests/unit/required.h"

namespace tributary::e2e::soak_test {
namespace {

TEST_CASE("daemons do not grow with snapshots, views, jobs, attaches and connections") {
  const TempDir dir;
  const auto soak = required(run_soak({.snapshots = 120,
                                       .views = 20,
                                       .jobs = 20,
                                       .attaches = 60,
                                       .connections = 60,
                                       .servers = 1,
                                       .base_dir = dir / "cluster",
                                       .bin_dir = TRIBUTARY_BIN_DIR}));
  for (const auto& row : soak.at("rows")) CHECK_MESSAGE(row.at("flat").get<bool>(), row.dump());
  CHECK(soak.at("rows").size() == 5 * 2);  // phases, daemons
  CHECK(soak.at("flat").get<bool>());
}

// Runs `tributary bench pushpull`, shorter.
TEST_CASE("a server has no more memory of its own than the formula says, at any size and over any transport") {
  for (const std::uint64_t model_bytes : {std::uint64_t{64} << 10, std::uint64_t{4} << 20, std::uint64_t{48} << 20}) {
    for (const Transport transport : {Transport::kTcp, Transport::kShm}) {
      bench::PushPullOptions options;
      options.model_bytes = model_bytes;
      options.transport = transport;
      options.seconds = 1.0;
      options.slices = 1;
      options.ceiling = false;
      options.store = model_bytes < 8u << 20;  // snapshots come and go; of small models in less than is fixed
      const auto result = required(bench::run_pushpull(options));
      const auto& memory = result.at("memory");
      CHECK_MESSAGE(memory.at("ratio").get<double>() <= 1.0, memory.dump());
      // Beside the process's fixed part, what is there is most of what the formula says.
      const double fixed = 32e6;
      CHECK_MESSAGE(
          memory.at("formula_bytes").at(0).get<double>() < 1.5 * memory.at("server_bytes").at(0).get<double>() + fixed,
          memory.dump());
    }
  }
}

}  // namespace
}  // namespace tributary::e2e::soak_test
