// A real lane of a server for the real lanes of a worker, on this machine.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "server/lane/lane.h"
#include "tests/changed_view.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node/lane_listener.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"

namespace tributary::testing {

// One server lane, opened for whatever job a node begins, with plain SGD of learning rate 1.
struct LocalServer {
  explicit LocalServer(std::uint32_t of_nodes = 1) : nodes(of_nodes) {
    auto started =
        required(Lane::start({{ShardIndex(0), LaneIndex(0)}, "tcp://127.0.0.1:*", ""}, listener, quiet_logger()));
    lane = std::move(started);
  }
  // As the coordinator does before a worker is welcomed.
  void open(const NodeJobSpec& spec) {
    ShardJob job{spec.view, ShardIndex(0), LaneIndex(0)};
    job = changed(job, [this](ViewPlan& view, JobConfig& config) {
      view.nodes = nodes;
      config.optimizer.lr = 1.0;
    });
    lane->open(std::move(job), std::make_shared<LaneJobGauges>());
    lane->opened(spec.view->job, spec.view->view, false);
    required(required(listener.opened()));
  }
  // Makes `node` a worker of this server. name: the link name for the node; default: the lane's.
  void serve(LaneNode& node, std::optional<std::string> name = std::nullopt) {
    node.adjust = [this, name](NodeJobSpec& spec) {
      spec.locals = {{name.value_or(lane->link_name())}};
      open(spec);
    };
  }
  const std::uint32_t nodes;
  Listener listener;
  std::unique_ptr<Lane> lane;
};

}  // namespace tributary::testing
