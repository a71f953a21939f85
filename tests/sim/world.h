// The simulated world: servers' lanes and nodes, each around the real cores, and the network between them. What happens
// is told to a judge (judge.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/codec.h"
#include "server/round_gate.h"
#include "server/shard_core.h"
#include "tests/sim/judge.h"
#include "tests/sim/network.h"
#include "tests/sim/random.h"
#include "tests/sim/simulation.h"
#include "worker/client_core.h"
#include "worker/host_reducer.h"
#include "worker/node_gather.h"

namespace tributary::sim {

inline constexpr JobId kJob{77};

using Bytes = std::vector<std::byte>;

inline Bytes encoded(const DataMessage& message) {
  alignas(8) std::byte buffer[kMaxErrorHeader];
  const std::span<const std::byte> bytes = encode_data(message, buffer);
  return Bytes(bytes.begin(), bytes.end());
}

class World;

// One lane of one server: a real ShardCore.
class LaneSim : public ShardOutput {
 public:
  LaneSim(World& world, std::uint16_t shard, std::uint16_t lane);
  void receive(std::uint32_t node, const Bytes& header, const std::shared_ptr<const Bytes>& payload);
  void answer(PeerId to, const Answer& header, const BufferRef& payload) override;
  void residual(PeerId to, const Residual&, const BufferRef&) override;
  void receipt(PeerId to, const Receipt& header) override { reply(to, header); }
  void resend(PeerId to, const Resend& header) override { reply(to, header); }
  void error(PeerId to, const ErrorReply& header) override { reply(to, header); }
  void captured(ChunkSnapshot snapshot) override;
  void facts(const RoundFacts& facts) override;
  // The gate's answer; and as long as it has not come, the question again.
  void decide(const RoundDecision& decision);
  void ask_gate();

  ShardCore& core() { return *core_; }

 private:
  struct KeyOrder {
    bool operator()(const ChunkKey& a, const ChunkKey& b) const {
      return std::pair(a.node, a.chunk) < std::pair(b.node, b.chunk);
    }
  };
  void reply(PeerId to, const DataMessage& message);
  World& world_;
  ConnectionIndex connection_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<ShardCore> core_;
  std::map<ChunkKey, std::uint64_t, KeyOrder> last_rounds_;  // of pushes that came
  std::optional<RoundFacts> undecided_;
};

// One node: real ClientCore, NodeGather and HostReducer, simulated trainers.
class NodeSim : public ClientOutput, private ReduceListener {
 public:
  NodeSim(World& world, std::uint32_t node);
  void start();
  void receive(ConnectionIndex from, const Bytes& header, std::span<const std::byte> payload);
  void tick();
  bool done() const;
  // The last round is over: what snapshots need of this node goes to the servers.
  void leave();
  bool left() const { return !keeps_residual_ || client_->residuals_kept(); }

  void send_push(ConnectionIndex connection, const Push& push) override;
  void send_init(ConnectionIndex connection, const Init& init) override;
  void send_pull(ConnectionIndex connection, const Pull& pull) override;
  void send_query(ConnectionIndex connection, const Query& query) override;
  std::uint64_t kept_weight(ChunkIndex, Round) override { return 0; }
  void answered(const Answer& answer, bool whole, std::span<const std::byte> payload) override;
  void residual_restored(ChunkIndex chunk, std::span<const std::byte> values) override;
  void refused(const ErrorReply& error) override;

  const ClientCore& client() const { return *client_; }

 private:
  struct RankSim {
    std::vector<float> gradient;
    std::vector<std::uint64_t> tensor_round;  // last round computed or being computed
  };
  void reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) override;
  void delivered(ChunkIndex chunk, Version version) override;
  void reducer_failed(Error error) override;
  void send(ConnectionIndex connection, const DataMessage& message, std::shared_ptr<const Bytes> payload);
  void start_tensor_if_current(std::uint32_t local, std::size_t tensor);
  void compute_tensor(std::uint32_t local, std::size_t tensor, std::uint64_t round);

  World& world_;
  const std::uint32_t node_;
  std::unique_ptr<ClientCore> client_;
  std::unique_ptr<NodeGather> gather_;
  std::unique_ptr<HostReducer> reducer_;
  std::vector<std::shared_ptr<const Bytes>> frames_;  // by chunk: payload of the open push
  bool keeps_residual_ = false;
  std::vector<NodeGather::Complete> complete_;
  std::vector<RankSim> ranks_;
  std::vector<float> params_;
  std::vector<std::uint64_t> versions_;    // by chunk, + 1; 0: nothing delivered
  std::map<std::uint64_t, float> scales_;  // with a gate: by round, what its loss is multiplied by
};

// What the next view begins with.
struct Restart {
  Round round;
  SavedState state;
};

class World {
 public:
  // from: the view goes on from there; null: a fresh job.
  World(const Scenario& scenario, Mutation mutation, ViewId view, const Restart* from);

  void broken(const std::string& what);
  const Scenario& scenario() const { return setup.scenario; }
  LaneSim& lane(ConnectionIndex connection) { return *lanes[connection.value]; }

  // Runs until all nodes have the last round, or until `cut` events have happened; false then.
  bool train(std::uint64_t cut, std::uint64_t& events);
  // Nodes leave and shards stop, in either order.
  void leave(std::uint64_t& events);
  // The newest snapshot that is complete; none yet: nothing.
  std::optional<Restart> newest_complete() const;

  void keep_for_restart(const ChunkSnapshot& snapshot);
  // The coordinator's part: facts from a lane.
  void gate_hears(LaneSim& from, const RoundFacts& facts);

 private:
  void snapshot_sometimes();
  void check_snapshots(bool all);
  void stop_shards();
  bool done() const;
  bool step(std::uint64_t& events);

 public:
  JudgeSetup setup;
  const Mutation mutation;
  const ViewId view;
  const Round start;
  const SavedState* const saved;  // null: fresh
  Random random;
  std::shared_ptr<const Layout> layout;
  std::unique_ptr<Judge> judge;
  std::optional<RoundGate> gate;
  std::string failure;
  std::uint64_t resends = 0, snapshots_checked = 0, withheld = 0, clipped = 0, skipped = 0;
  // Destroyed in reverse: events and snapshots hold buffers of the lanes' pools.
  std::vector<std::unique_ptr<LaneSim>> lanes;
  std::vector<std::unique_ptr<NodeSim>> nodes;
  struct Kept {
    ChunkSnapshot snapshot;
    std::span<const float> params;
    std::uint64_t read_at_ns;
  };
  std::vector<Kept> kept;
  Network network;

 private:
  std::map<std::uint64_t, std::map<std::uint32_t, SavedChunk>> captured_;  // by round, chunk
  std::function<void()> tick_, snapshots_;
};

}  // namespace tributary::sim
