// Feeds the coordinator control messages that any daemon could send, in any order, among orders, restarts and passing
// time.
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "common/config/job_json.h"
#include "common/wire/codec.h"
#include "server/coordinator/cluster/job_record_seal.h"
#include "server/coordinator/coordinator_core.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/unit/common/wire/random_message.h"
#include "tests/unit/server/coordinator/parts_in_memory.h"

namespace tributary::fuzz::coordinator {
namespace {

constexpr std::uint16_t kServers = 2;
constexpr std::uint64_t kTimeoutMs = 10'000;
constexpr std::size_t kMostMoves = 200;

// Two names, because a job may take another's place.
constexpr std::string_view kJobs[] = {
    R"({"job":{"name":"a"},"membership":{"on_state_lost":"rewind"},"snapshot":{"every_rounds":2}})",
    R"({"job":{"name":"a"},"membership":{"on_worker_loss":"continue"},"recovery":{"redo_mb":0}})",
    R"({"job":{"name":"b"},"gate":{"clip_norm":1.0},"encoding":{"push":"int8"}})",
    R"({"job":{"name":"b","mode":"ssp"},"ssp":{"staleness":1}})",
    R"({"job":{"name":"b","mode":"allreduce"},"snapshot":{"every_rounds":2}})",
};

enum class Move : std::uint8_t {
  kServerHello,
  kWorkerHello,
  kHeartbeat,
  kJoin,
  kReady,
  kKept,
  kLeave,
  kSnapshotDone,
  kFacts,
  kRankState,
  kCheckpointDone,
  kAddress,
  kDrainRequest,
  kAnything,
  kTime,
  kSave,
  kRestore,
  kStopJob,
  kRemoveJob,
  kExpel,
  kReconnect,
  kDrain,
  kRestart,
  kLargeState,
  kWantPart,
  kStatePart,
  kValues,
  kEnd
};

class Run final : private CoordinatorOutput {
 public:
  explicit Run(Choices input) : input_(input) { restart(); }
  void all() {
    for (std::size_t moves = 0; moves < kMostMoves && !input_.over(); ++moves) {
      move(static_cast<Move>(input_.number() % static_cast<unsigned>(Move::kEnd)));
      write();
    }
    (void)core_->jobs();
    (void)core_->peers();
    (void)core_->checkpoint(operation_);
  }

 private:
  // ---- CoordinatorOutput ----
  void send(PeerId, const ControlMessage& message) override {
    require(decode_control(encode_control(message)).has_value(), "what the coordinator says can be understood");
    if (const auto* open = std::get_if<OpenJob>(&message)) begin(open->job, open->view);
    if (const auto* welcome = std::get_if<JobWelcome>(&message)) begin(welcome->job, welcome->view);
    if (const auto* write = std::get_if<WriteCheckpoint>(&message)) operation_ = write->operation;
    if (const auto* load = std::get_if<LoadCheckpoint>(&message)) operation_ = load->operation;
  }
  void save(const JobRecord& record) override {
    require(tributary::records::unseal_job(tributary::records::seal(record), "it").has_value(),
            "what is recorded can be read");
    writes_.push_back([this, record] {
      if (!disk_full_) registry_[record.job] = record;
      core_->saved(record.job, disk_full_ ? fail(ErrorCode::kStore, "the disk is full") : Status(), now_);
    });
  }
  void adopt(std::vector<JobRecord> records) override {
    writes_.push_back([this, records = std::move(records)] {
      for (const JobRecord& record : records) registry_[record.job] = record;
      restart();
    });
  }
  void remove(JobId job) override {
    writes_.push_back([this, job] {
      registry_.erase(job);
      core_->removed(job, {}, now_);
    });
  }
  void on_disk(Work work, Done done) override {
    writes_.push_back([this, work = std::move(work), done = std::move(done)] { done(work(), now_); });
  }
  // A move later, or some moves.
  void write() {
    if (writes_.empty()) return;
    const auto order = std::move(writes_.front());
    writes_.pop_front();
    order();
  }
  LargePartStore* large_parts() override { return &parts_; }
  std::uint64_t wall_ms() const override { return 1'700'000'000'000; }
  void log(const std::string&, LogLevel) override {}

  void begin(JobId job, ViewId view) {
    job_ = job;
    view_ = view;
  }
  void restart() {
    std::vector<JobRecord> records;
    for (const auto& [job, record] : registry_) records.push_back(record);
    parts_.restart();
    writes_.clear();
    ++incarnation_;
    core_ = std::make_unique<CoordinatorCore>(
        CoordinatorOptions{kServers, incarnation_, kTimeoutMs, incarnation_ * 1000, 1}, std::move(records),
        static_cast<CoordinatorOutput&>(*this));
  }

  // ---- Mostly what fits, at times anything ----
  JobId job() { return input_.number() < 0xf0 ? job_ : JobId(input_.number<std::uint64_t>()); }
  ViewId view() { return input_.number() < 0xf0 ? view_ : ViewId(input_.number<std::uint32_t>()); }
  std::uint64_t round() {
    const std::uint8_t small = input_.number();
    return small < 0xf0 ? small % 8 : input_.number<std::uint64_t>();
  }
  std::string name() { return input_.flag() ? "a" : "b"; }
  double bandwidth() {
    static constexpr double kOf[] = {1.0, 1.0, 25.0, 0.001, 1e15, -1.0};
    return kOf[input_.number() % std::size(kOf)];
  }
  std::string host() {
    const std::uint8_t which = input_.number() % 4;
    return which == 0 ? "" : "host-" + std::to_string(which);
  }
  GateDecision decision() {
    GateDecision decision{static_cast<GateVerdict>(input_.number() % 5), 0.5, 2.0, 1024.0f, input_.number()};
    decision.check();
    return decision;
  }
  // A few, and some whose checksum is never right.
  static LargePart large(std::uint8_t which) {
    const std::uint64_t bytes = 1 + which % 4;
    const Bytes data(bytes, static_cast<std::byte>(bytes));
    const auto [high, low] = Checksum128().add(data.data(), data.size()).value();
    return {bytes, high, (which & 0x40u) ? low + 1 : low};
  }
  // A server of index i is 10 + i, a worker w 20 + w, each with two incarnations in turn.
  static std::uint64_t server(std::uint8_t which) { return 10 + which % kServers + (which >> 7) * 100u; }
  static std::uint64_t worker(std::uint8_t which) { return 20 + which % 3 + (which >> 7) * 100u; }

  void say(std::uint64_t who, const ControlMessage& message) {
    const auto arrived = decode_control(encode_control(message));
    if (arrived) core_->on_message(PeerId(who + connection_), *arrived, now_);
  }

  void move(Move move) {
    const std::uint8_t which = input_.number();
    switch (move) {
      case Move::kServerHello: {
        ServerHello hello;
        hello.shard = ShardIndex(which % kServers);
        hello.servers = kServers;
        hello.incarnation = server(which);
        hello.bandwidth = bandwidth();
        hello.host = host();
        const std::uint8_t more = input_.number();
        hello.lane_endpoints.assign(more % 3, "tcp://127.0.0.1:7080");
        hello.store = (more & 0x10u) != 0;
        if (more & 0x20u) hello.stored = {{job(), name(), 0, {Round(1), Round(round())}}};
        if (more & 0x40u) hello.kept = {{job(), Version(round()), Version(round()), (more & 0x80u) != 0}};
        return say(server(which), hello);
      }
      case Move::kWorkerHello: {
        WorkerHello hello{"node-" + std::to_string(which % 3), worker(which), host()};
        hello.bandwidth = bandwidth();
        return say(worker(which), hello);
      }
      case Move::kHeartbeat: {
        const bool server_says = input_.flag();
        Heartbeat beat{server_says ? server(which) : worker(which), {}, {}};
        const std::uint8_t more = input_.number();
        if (more & 1u) beat.progress = {{job(), view(), Version(round()), Version(round()), true, (more & 4u) != 0}};
        if (more & 2u) beat.paces = {NodePace{.job = job(), .view = view(), .node = NodeRank(more >> 6)}};
        if (more & 2u) beat.paces[0].rounds = round();
        return say(beat.incarnation, beat);
      }
      case Move::kJoin: {
        JoinJob join;
        const std::uint8_t more = input_.number();
        join.job_json = kJobs[(more >> 4) % std::size(kJobs)];
        join.tensors = {{"w", {2000}}, {"b", {16}}};
        if (input_.flag()) join.tensors[0].shape = {3, 1u << input_.number() % 24};
        join.node = NodeRank(which % 3);
        join.nodes = 1 + more % 3;
        join.world_size = join.nodes;
        if (more & 0x08u) join.world_size = input_.number<std::uint16_t>();
        for (unsigned ranks = more & 0x04u ? input_.number() % 3 : 0; ranks > 0; --ranks) {
          join.model_ranks.push_back(input_.number() % 3);
        }
        join.checkpoint_round = Round(round());
        join.redo_job = job();
        join.redo_last = Round(round());
        join.redo_capacity = input_.number();
        join.redo_members = input_.flag() ? members_hash({0, 1}) : input_.number();
        return say(worker(which), join);
      }
      case Move::kReady:
        return say(server(which), ShardReady{job(), view(), which < 0xc0, ErrorCode::kStore, "no"});
      case Move::kKept:
        return say(server(which), ShardKept{job(), view(), (which & 4u) != 0, Version(round()), Version(round())});
      case Move::kLeave:
        return say(worker(which), LeaveJob{job(),
                                           view(),
                                           NodeRank(which % 3),
                                           static_cast<LeaveKind>(which / 4 % 3),
                                           Round(round()),
                                           "it",
                                           which & 0x20u ? name() : "",
                                           {}});
      case Move::kSnapshotDone: {
        const std::uint64_t who = input_.flag() ? server(which) : worker(which);
        return say(who, SnapshotDone{job(), view(), Round(round()), which < 0xc0, 1000, "disk"});
      }
      case Move::kFacts: {
        RoundFacts facts{job(), view(), Round(round()), decision(), decision(), {}};
        facts.chunks = {{ChunkIndex(input_.number() % 4), {1.0, 4, true}}};
        if (input_.flag()) {
          facts.chunks.push_back({ChunkIndex(input_.number()), {4.0, input_.number<std::uint64_t>(), input_.flag()}});
        }
        return say(server(which), facts);
      }
      case Move::kRankState: {
        const auto state = input_.take(which / 4);
        return say(worker(which), NodeRankState{job(),
                                                view(),
                                                NodeRank(which % 3),
                                                input_.number() % 4u,
                                                {Round(round()), {state.begin(), state.end()}}});
      }
      case Move::kCheckpointDone:
        return say(server(which), CheckpointDone{operation_, which < 0xc0, ErrorCode::kIo, "no", which,
                                                 std::string(32, 'c'), (which & 4u) != 0});
      case Move::kAddress:
        return say(worker(which), PeerAddress{job(), view(), NodeRank(which % 3), name(), Bytes(which)});
      case Move::kDrainRequest:
        return say(input_.flag() ? server(which) : worker(which), DrainRequest{server(which)});
      case Move::kAnything: {
        testing::Random random(input_.number<std::uint16_t>());
        const auto all = testing::one_of_each<ControlMessage>(random);
        return say(input_.flag() ? server(which) : worker(which), all[which % all.size()]);
      }
      case Move::kTime:
        now_ += which * 100u;
        disk_full_ = which == 0xff;
        return core_->tick(now_);
      case Move::kSave:
        (void)core_->save_checkpoint({name(), "/shared", "2030-01-02T03:04:05Z", which % 2 != 0}, now_);
        return;
      case Move::kRestore:
        return restore(which);
      case Move::kStopJob:
        (void)core_->stop_job(name(), "somebody wants it");
        return;
      case Move::kRemoveJob:
        (void)core_->remove_job(name());
        return;
      case Move::kExpel:
        return core_->expel("", "it was revoked", now_);
      case Move::kReconnect:
        connection_ = which % 2 * 1000u;
        return;
      case Move::kDrain:
        if (which == 0xff) core_->drain(now_);
        return;
      case Move::kRestart:
        return restart();
      case Move::kLargeState: {
        const StateHead head{large(which), (which & 0x80u) == 0};
        return say(worker(which),
                   NodeRankState{job(), view(), NodeRank(which % 3), 0, {Round(round()), head.before({})}});
      }
      case Move::kWantPart:
        return say(worker(which), WantPart{job(), large(input_.number()), 0});
      case Move::kStatePart: {
        const LargePart part = large(input_.number());
        const Bytes data(input_.flag() ? part.bytes : 0, static_cast<std::byte>(part.bytes));
        return say(worker(which), StatePart{{job(), part, 0}, data});
      }
      case Move::kValues: {
        SharedValues values{Round(round()), input_.number() % 3u, (which & 0x40u) != 0, {}};
        for (std::uint32_t rank = (which & 0x20u) != 0 ? 0 : which % 3u; rank < which % 4u; ++rank) {
          values.values.push_back({rank, Bytes(input_.number() % 4, static_cast<std::byte>(which))});
        }
        return say(worker(which), RankValues{job(), view(), values, {}, ""});
      }
      case Move::kEnd:
        return;
    }
  }

  void restore(std::uint8_t which) {
    RestoreOrder order;
    order.manifest.created = "2030-01-02T03:04:05Z";
    const auto config = job_from_json(kJobs[which % std::size(kJobs)]);
    require(config.has_value(), config ? "" : config.error().message);
    order.manifest.job_json = to_canonical_json(*config);
    order.manifest.round = Round(round());
    order.manifest.tensors = {{"w", {2000}}, {"b", {16}}};
    order.manifest.chunk_elements = 1024;
    order.manifest.chunk_shards = {ShardIndex(0), ShardIndex(0)};
    order.manifest_checksum = std::string(32, 'a');
    order.directory = "/shared/a-round-2";
    order.name = name();
    order.force = which >= 0x80;
    (void)core_->restore_checkpoint(order, now_);
  }

  Choices input_;
  std::unique_ptr<CoordinatorCore> core_;
  std::map<JobId, JobRecord> registry_;
  std::deque<std::function<void()>> writes_;
  testing::PartsInMemory parts_;
  std::uint64_t incarnation_ = 0, now_ = 1'000'000, connection_ = 0, operation_ = 0;
  JobId job_;  // told of last, as all below
  ViewId view_;
  bool disk_full_ = false;
};

// Servers and nodes meet, train a few rounds with a snapshot, and leave.
Bytes training(std::uint8_t job) {
  Bytes input;
  const auto say = [&](Move move, std::initializer_list<unsigned> numbers) {
    input.push_back(static_cast<std::byte>(move));
    for (const unsigned number : numbers) input.push_back(static_cast<std::byte>(number));
  };
  for (const unsigned index : {0u, 1u}) say(Move::kServerHello, {index, 0, 1 + index, 0x11});
  for (const unsigned node : {0u, 1u}) say(Move::kWorkerHello, {node, 3, 0});
  const unsigned two_nodes = job * 16u + (4 - job % 3u) % 3;
  for (const unsigned node : {0u, 1u}) say(Move::kJoin, {node, two_nodes, 0, 0, 0, 0, 16, 0, 0});
  for (const unsigned index : {0u, 1u}) say(Move::kReady, {index, 0, 0});
  for (unsigned round = 1; round <= 3; ++round) {
    for (const unsigned index : {0u, 1u}) {
      say(Move::kFacts, {index, 0, 0, round, 0, 0, 0, 0, 0, 0});
      say(Move::kHeartbeat, {index, 1, 1, 0, 0, round, round});
    }
    say(Move::kHeartbeat, {0, 0, 2, 0, 0, round});
    say(Move::kTime, {10});
    say(Move::kLargeState, {round, 0, 0, round});
    say(Move::kStatePart, {round, round, 1, 0});
    say(Move::kWantPart, {0, 0, round});
    for (const unsigned which : {9u, 10u}) say(Move::kValues, {which, round, 0, 1, 0, 0});  // of one rank each
    for (const unsigned index : {0u, 1u}) say(Move::kSnapshotDone, {index, 1, 0, 0, round});
  }
  // A third node, which only elastic jobs let in.
  say(Move::kWorkerHello, {2, 3, 0});
  say(Move::kJoin, {2, two_nodes, 0, 0, 0, 0, 16, 0, 0});
  say(Move::kReconnect, {1});
  for (const unsigned index : {0u, 1u}) say(Move::kHeartbeat, {index, 1, 1, 0, 0, 3, 3});
  say(Move::kSave, {0, 1});
  for (const unsigned index : {0u, 1u}) say(Move::kCheckpointDone, {index});
  for (const unsigned node : {0u, 1u}) say(Move::kLeave, {node, 0, 0, 3});
  for (const unsigned index : {0u, 1u}) say(Move::kSnapshotDone, {index, 1, 0, 0, 3});
  return input;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint8_t job = 0; job < std::size(kJobs); ++job) all.push_back(training(job));
  return all;
}

void run(std::span<const std::byte> bytes) {
  Run(Choices(bytes)).all();
}

Target target() {
  return {"coordinator", seeds, run};
}

}  // namespace tributary::fuzz::coordinator
