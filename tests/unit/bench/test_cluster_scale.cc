// Costs of large clusters for server 0, on virtual wires.
#include <doctest/doctest.h>

#include <vector>

#include "bench/cluster_scale.h"

namespace tributary::cluster_scale_test {

using namespace bench;

TEST_CASE("server 0 holds few frames for one late node, and says little to each node") {
  std::vector<nlohmann::ordered_json> rows;
  MeasurementRun run;
  run.row = [&](nlohmann::ordered_json row) { rows.push_back(std::move(row)); };
  const ClusterScaleOptions options{
      .nodes = {6, 300}, .servers = 4, .lanes = 2, .ranks = 2, .model_bytes = 64 << 20, .chunks = 1};
  const Status measured = run_cluster_scale(options, run);
  REQUIRE_MESSAGE(measured, measured.error().message);
  REQUIRE(rows.size() == 2);
  for (const auto& row : rows) {
    CAPTURE(row.dump());
    const std::size_t nodes = row["nodes"];
    CHECK(row["view"]["out"]["messages"] == nodes + 4 + 3);
    CHECK(row["allreduce_addresses"]["out"]["messages"] == nodes);
    for (const auto& round : row["round"]) {
      CHECK(round["frames_of_a_chunk_with_one_late"] <= 18);  // of 300, which is no power of four
      CHECK(round["in"]["messages"] == nodes * row["chunks_of_server_0"].get<std::size_t>());
    }
  }
  CHECK(run.held);
}

TEST_CASE("a cluster that is too large for a constant says which, and the measurement fails") {
  MeasurementRun run;
  nlohmann::ordered_json row;
  run.row = [&](nlohmann::ordered_json measured) { row = std::move(measured); };
  const ClusterScaleOptions options{
      .nodes = {2}, .servers = 64, .lanes = 16, .ranks = 1, .model_bytes = 64 << 20, .chunks = 1};
  REQUIRE(run_cluster_scale(options, run));
  CHECK_FALSE(run.held);
  std::vector<std::string> reached;
  for (const auto& one : row["constants"]) {
    if (one["reached"]) reached.push_back(one["name"]);
  }
  CHECK(reached == std::vector<std::string>{"ZMQ_MAX_SOCKETS of a worker's lane"});
}

TEST_CASE("one node is no cluster") {
  MeasurementRun run;
  const Status refused = run_cluster_scale({.nodes = {1}}, run);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("at least 2, not 1") != std::string::npos);
}

}  // namespace tributary::cluster_scale_test
