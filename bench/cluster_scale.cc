#include "bench/cluster_scale.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/measurements.h"
#include "bench/sample_model.h"
#include "common/config/job_json.h"
#include "common/files/checkpoint_manifest.h"
#include "common/wire/codec.h"
#include "kernels/tree_sum.h"
#include "server/coordinator/coordinator.h"
#include "server/shard/chunk_arrays.h"
#include "server/shard/shard_core.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kZmqSockets = 1023;      // of a context, by default: a worker's lane has one
constexpr std::size_t kAddressBytes = 8 * 30;  // of a node that adds up in host memory over three streams

double cpu_ms_since(std::clock_t began) {
  return 1e3 * static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
}

std::uint64_t resident_bytes() {
  std::uint64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Messages that went one way, and how many of them to whom.
class Traffic {
 public:
  void add(PeerId peer, std::size_t bytes) {
    ++messages_;
    bytes_ += bytes;
    largest_ = std::max(largest_, bytes);
    most_ = std::max(most_, ++to_[peer.value]);
  }
  std::size_t largest() const { return largest_; }
  std::size_t most() const { return most_; }
  Json json() const {
    return {{"messages", messages_}, {"bytes", bytes_}, {"most_to_one", most_}, {"largest", largest_}};
  }

 private:
  std::size_t messages_ = 0, bytes_ = 0, largest_ = 0, most_ = 0;
  std::map<std::uint64_t, std::size_t> to_;
};

// A coordinator with all its peers.
class VirtualCluster final : public CoordinatorOutput {
 public:
  VirtualCluster(const ClusterScaleOptions& options, std::uint32_t nodes, Mode mode)
      : options_(options),
        nodes_(nodes),
        servers_(mode == Mode::kAllreduce ? std::uint16_t{0} : options.servers),
        core_(CoordinatorOptions{servers_, 7, 10'000, 7000}, {}, *this) {
    JobConfig config;
    config.name = "scale";
    config.mode = mode;
    config.snapshot.every_s = 0;
    if (mode != Mode::kAllreduce) config.gate.clip_norm = 1.0;
    join_.job_json = to_canonical_json(config);
    join_.tensors = sample_tensors(options.model_bytes);
    join_.nodes = nodes;
    join_.local_world_size = options.ranks;
    join_.world_size = nodes * options.ranks;
  }

  // Measures from when all peers are there, and the last node's trainers have attached, until all nodes are welcomed.
  Json open() {
    for (std::uint16_t s = 0; s < servers_; ++s) {
      ServerHello hello;
      hello.shard = ShardIndex(s);
      hello.servers = servers_;
      hello.incarnation = 10 + s;
      hello.host = "server" + std::to_string(s);
      hello.store = true;
      for (std::uint16_t lane = 0; lane < options_.lanes; ++lane)
        hello.lane_endpoints.push_back("tcp://server" + std::to_string(s) + ".cluster:" + std::to_string(7100 + lane));
      hello.lane_locals.resize(options_.lanes);
      say(server(s), hello);
    }
    for (std::uint32_t w = 0; w < nodes_; ++w) {
      WorkerHello hello;
      hello.name = hello.host = "node" + std::to_string(w);
      hello.incarnation = 100'000 + w;
      say(worker(w), hello);
    }
    for (std::uint32_t w = 0; w + 1 < nodes_; ++w) join(w);
    const std::uint64_t memory = resident_bytes();
    return phase(
        [&] {
          join(nodes_ - 1);
          for (std::uint16_t s = 0; s < servers_; ++s)
            say(server(s), ShardReady{welcome_.job, welcome_.view, true, {}, {}});
        },
        [&](Json& row) {
          row["welcomed"] = welcomed_;
          const std::uint64_t now = resident_bytes();
          row["memory_bytes"] = now - std::min(memory, now);
        });
  }

  Json second_of_heartbeats() {
    return phase([&] {
      now_ += 1000;
      for (std::uint16_t s = 0; s < servers_; ++s) {
        say(server(s), Heartbeat{10u + s, {{welcome_.job, welcome_.view, Version(5), Version(6)}}});
      }
      for (std::uint32_t w = 0; w < nodes_; ++w) {
        NodePace pace{welcome_.job, welcome_.view, NodeRank(w), 1};
        pace.said.resize(options_.ranks);
        say(worker(w), Heartbeat{100'000u + w, {}, {std::move(pace)}});
      }
      core_.tick(now_);
      write();
    });
  }

  // Each lane reports its chunks, and the decision goes out.
  Json gate_of_a_round() {
    return phase([&] {
      std::map<std::pair<std::uint16_t, std::uint16_t>, RoundFacts> facts;
      for (std::size_t c = 0; c < welcome_.owners.size(); ++c) {
        RoundFacts& of = facts[{welcome_.owners[c].shard.value, welcome_.owners[c].lane.value}];
        of.chunks.push_back({ChunkIndex(static_cast<std::uint32_t>(c)), {1.0, 32, true}});
      }
      for (auto& [lane, of] : facts) {
        of.job = welcome_.job;
        of.view = welcome_.view;
        of.round = Round(1);
        say(server(lane.first), of);
      }
    });
  }

  Json addresses() {
    return phase([&] {
      for (std::uint32_t w = 0; w < nodes_; ++w) {
        PeerAddress mine{welcome_.job, welcome_.view, NodeRank(w), "gloo", {}};
        mine.value.resize(kAddressBytes);
        say(worker(w), mine);
      }
    });
  }

  const JobWelcome& welcome() const { return welcome_; }
  std::size_t largest() const { return largest_; }
  std::size_t most_to_one() const { return most_to_one_; }

 private:
  static PeerId server(std::uint32_t s) { return PeerId(1'000'000 + s); }
  static PeerId worker(std::uint32_t w) { return PeerId(2'000'000 + w); }

  void join(std::uint32_t w) {
    join_.node = NodeRank(w);
    say(worker(w), join_);
  }
  // As bytes, as a daemon's arrive.
  void say(PeerId from, const ControlMessage& message) {
    const std::vector<std::byte> bytes = encode_control(message);
    in_.add(from, bytes.size());
    core_.on_message(from, *decode_control(bytes), now_);
    write();
  }
  void write() {
    for (const JobId job : std::exchange(saved_, {})) core_.saved(job, {}, now_);
  }
  Json phase(const std::function<void()>& run, const std::function<void(Json&)>& more = {}) {
    in_ = out_ = {};
    const std::clock_t began = std::clock();
    run();
    Json row = {{"cpu_ms", cpu_ms_since(began)}, {"in", in_.json()}, {"out", out_.json()}};
    if (more) more(row);
    largest_ = std::max({largest_, in_.largest(), out_.largest()});
    most_to_one_ = std::max(most_to_one_, out_.most());
    return row;
  }

  void send(PeerId to, const ControlMessage& message) override {
    out_.add(to, encode_control(message).size());
    if (const auto* opened = std::get_if<OpenJob>(&message)) {
      welcome_.job = opened->job;
      welcome_.view = opened->view;
    }
    if (const auto* welcome = std::get_if<JobWelcome>(&message)) {
      welcome_ = *welcome;
      ++welcomed_;
    }
  }
  void save(const JobRecord& record) override { saved_.push_back(record.job); }
  void adopt(std::vector<JobRecord>) override {}
  void remove(JobId) override {}
  void on_disk(Work, Done) override {}  // there are no large parts
  LargePartStore* large_parts() override { return nullptr; }
  std::uint64_t wall_ms() const override { return now_; }
  void log(const std::string&, LogLevel) override {}

  const ClusterScaleOptions& options_;
  const std::uint32_t nodes_;
  const std::uint16_t servers_;
  std::vector<JobId> saved_;
  CoordinatorCore core_;
  JoinJob join_;
  JobWelcome welcome_;  // the last one
  std::size_t welcomed_ = 0, largest_ = 0, most_to_one_ = 0;
  std::uint64_t now_ = 1000;
  Traffic in_, out_;
};

// Counts the messages of a lane.
class CountedOutput final : public ShardOutput {
 public:
  void send(PeerId, const DataMessage& message, const BufferRef& values) override {
    if (std::holds_alternative<ErrorReply>(message)) {
      ++errors;
      return;
    }
    alignas(8) std::byte space[kMaxErrorHeader];
    ++messages;
    bytes += encode_data(message, space).size() + values.size();
  }
  void captured(ChunkSnapshot) override {}

  std::uint64_t messages = 0, bytes = 0, errors = 0;
};

// One round of some chunks that all nodes push, in the order of nodes or in any.
Result<Json> round_of_chunks(const ClusterScaleOptions& options, std::uint32_t nodes, std::uint64_t chunk_elements,
                             std::size_t chunks_of_server, bool in_order) {
  ViewPlan view;
  JobConfig config;
  config.name = "scale";
  view.plan = JobPlan::of(config);
  view.job = JobId(1);
  view.view = ViewId(1);
  view.nodes = nodes;
  const std::vector<ShardSlots> slots = {{1, 1.0}};
  auto layout = Layout::make({{"w", {chunk_elements * options.chunks}}}, chunk_elements, slots);
  if (!layout) return tl::unexpected(layout.error());
  view.layout = std::make_shared<const Layout>(std::move(*layout));
  ShardJob job;
  job.view = std::make_shared<const ViewPlan>(std::move(view));
  job.recovers = true;
  BufferPool pool(chunk_elements * sizeof(float), options.chunks * chunk_arrays(job).most());
  CountedOutput out;
  ShardCore core(job, pool, out);
  const std::vector<std::byte> values(chunk_elements * sizeof(float));
  std::vector<std::uint32_t> who(nodes);
  for (std::uint32_t node = 0; node < nodes; ++node) who[node] = node;
  std::mt19937 random(1);
  std::uint64_t in_bytes = 0, late_frames = 0;
  const std::clock_t began = std::clock();
  for (std::uint32_t c = 0; c < options.chunks; ++c) {
    core.on_init(PeerId(1), Init{{job.view->job, job.view->view, NodeRank(0), ChunkIndex(c)}}, values);
    if (!in_order) std::ranges::shuffle(who, random);
    for (const std::uint32_t node : who) {
      if (node == who.back()) late_frames = std::max(late_frames, core.stats().held_frames);
      const Push push{{job.view->job, job.view->view, NodeRank(node), ChunkIndex(c)}, Round(1), 1, EncodingId::kFp32};
      alignas(8) std::byte space[kMaxErrorHeader];
      in_bytes += encode_data(push, space).size() + values.size();
      auto frame = std::make_unique<std::vector<std::byte>>(values);
      const std::span<std::byte> bytes = *frame;
      core.on_push(PeerId(2 + node), push, Payload::alone(std::move(frame), bytes));
    }
  }
  if (core.min_version() != Version(1) || out.errors != 0) {
    return fail(ErrorCode::kInternal, "a round of " + std::to_string(nodes) + " nodes was not applied");
  }
  const double all = static_cast<double>(chunks_of_server) / options.chunks;
  const auto scaled = [&](std::uint64_t count) { return static_cast<std::uint64_t>(all * static_cast<double>(count)); };
  const std::uint64_t frame = values.size();
  return Json{{"order", in_order ? "of nodes" : "any"},
              {"cpu_s", all * cpu_ms_since(began) / 1e3},
              {"in", {{"messages", scaled(std::uint64_t{nodes} * options.chunks)}, {"bytes", scaled(in_bytes)}}},
              {"out", {{"messages", scaled(out.messages)}, {"bytes", scaled(out.bytes)}}},
              {"most_frames_of_a_chunk", core.stats().max_held_bytes / frame},
              {"frames_of_a_chunk_with_one_late", late_frames},
              {"bytes_held_with_one_late", scaled(late_frames * frame * options.chunks)},
              {"bytes_without_adding", chunks_of_server * (nodes - 1) * frame}};
}

Json constant(const char* name, std::uint64_t limit, std::uint64_t needed) {
  return {{"name", name}, {"limit", limit}, {"needed", needed}, {"reached", needed > limit}};
}

Status measure(const ClusterScaleOptions& options, std::uint32_t nodes, MeasurementRun& run) {
  Json row = {{"nodes", nodes}, {"servers", options.servers}, {"parameters", options.model_bytes / sizeof(float)}};
  VirtualCluster cluster(options, nodes, Mode::kSync);
  const Json view = cluster.open();
  const JobWelcome& welcome = cluster.welcome();
  if (view["welcomed"] != nodes) return fail(ErrorCode::kInternal, "the view did not open");
  const auto mine = static_cast<std::size_t>(
      std::ranges::count_if(welcome.owners, [](const ChunkOwner& owner) { return owner.shard == ShardIndex(0); }));
  row["chunk_bytes"] = welcome.chunk_elements * sizeof(float);
  row["chunks_of_server_0"] = mine;
  row["view"] = view;
  row["heartbeats_of_a_second"] = cluster.second_of_heartbeats();
  row["gate_of_a_round"] = cluster.gate_of_a_round();
  VirtualCluster ring(options, nodes, Mode::kAllreduce);
  if (ring.open()["welcomed"] != nodes) return fail(ErrorCode::kInternal, "the all-reduce view did not open");
  row["allreduce_addresses"] = ring.addresses();
  row["round"] = Json::array();
  for (const bool in_order : {true, false}) {
    const Result<Json> round = round_of_chunks(options, nodes, welcome.chunk_elements, mine, in_order);
    if (!round) return tl::unexpected(round.error());
    row["round"].push_back(*round);
  }
  const std::uint64_t ranks = std::uint64_t{nodes} * options.ranks;
  row["constants"] = {
      constant("Coordinator::kHighWater", Coordinator::kHighWater, std::max(cluster.most_to_one(), ring.most_to_one())),
      constant("kMaxControlBytes", kMaxControlBytes, std::max(cluster.largest(), ring.largest())),
      constant("kMaxSumInputs", kernels::kMaxSumInputs, nodes),
      constant("kMaxChunks", kMaxChunks, welcome.owners.size()),
      constant("kMaxTensors", kMaxTensors, sample_tensors(options.model_bytes).size()),
      constant("kMaxParameters", kMaxParameters, options.model_bytes / sizeof(float)),
      constant("kMaxShards", kMaxShards, options.servers),
      constant("kMaxLaneEndpoints", kMaxLaneEndpoints, options.lanes),
      constant("kMaxRanks", kMaxRanks, ranks),
      constant("kMaxLocalRanks", kMaxLocalRanks, options.ranks),
      constant("kMaxAnswerBytes", kMaxAnswerBytes, ranks * (16 + 64)),     // 64 bytes of each rank
      constant("kMaxRankStatesBytes", kMaxRankStatesBytes, ranks * 1024),  // 1 KiB of each rank
      constant("ZMQ_MAX_SOCKETS of a worker's lane", kZmqSockets, std::uint64_t{options.servers} * options.lanes),
  };
  for (const Json& one : row["constants"]) {
    if (one["reached"]) run.held = false;
  }
  run.row(std::move(row));
  return {};
}

}  // namespace

Status run_cluster_scale(const ClusterScaleOptions& options, MeasurementRun& run) {
  for (const std::uint32_t nodes : options.nodes) {
    if (nodes < 2)
      return fail(ErrorCode::kInvalidArgument, "--nodes: a cluster has at least 2, not " + std::to_string(nodes));
    if (const Status measured = measure(options, nodes, run); !measured) return measured;
  }
  return {};
}

Measurement cluster_scale() {
  const auto add = [](CliCommand command, ClusterScaleOptions& o) {
    command.add_option("--nodes", o.nodes)->delimiter(',')->capture_default_str();
    command.add_option("--servers", o.servers)->check(in_range(1, 4096))->capture_default_str();
    command.add_option("--lanes", o.lanes, "of each server")->check(in_range(1, 64))->capture_default_str();
    command.add_option("--ranks", o.ranks, "of each node")->check(in_range(1, 256))->capture_default_str();
    add_bytes(command, "--model-bytes", o.model_bytes, "of fp32 parameters")->capture_default_str();
    command.add_option("--chunks", o.chunks, "of server 0 that are pushed; what they take is scaled to all of them")
        ->check(in_range(1, 1000))
        ->capture_default_str();
  };
  return {.name = "cluster-scale",
          .summary = "what server 0 says, hears and holds in large clusters, on virtual wires",
          .words = "Fields: docs/scale.md",
          .columns =
              "nodes,view.out.messages,view.out.bytes,view.cpu_ms,allreduce_addresses.out.messages,"
              "allreduce_addresses.out.most_to_one",
          .add = measures<ClusterScaleOptions>(
              add, [](ClusterScaleOptions& options, MeasurementRun& run) { return run_cluster_scale(options, run); })};
}

}  // namespace tributary::bench
