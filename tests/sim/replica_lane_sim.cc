#include "tests/sim/replica_lane_sim.h"

#include <algorithm>
#include <utility>

#include "tests/sim/job_world.h"
#include "tests/sim/judge/reference.h"
#include "worker/allreduce/allreduce_lane.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kMaxExchangeNs = 2 * kMs, kMaxNoticeNs = 5 * kMs, kRetryNs = 20 * kMs;
constexpr std::uint64_t kTimeoutNs = 10'000 * kMs;  // [worker] collective_timeout_ms
constexpr std::uint64_t kPartPatienceNs = kPartingPatienceMs * kMs;

}  // namespace

// ---- The ring ----

bool ReplicaRing::all_connected() const {
  return std::ranges::none_of(members_, [](const auto& member) { return member.expired(); });
}

std::vector<std::shared_ptr<ReplicaViewSim>> ReplicaRing::members() const {
  std::vector<std::shared_ptr<ReplicaViewSim>> members;
  for (const auto& weak : members_) {
    if (auto member = weak.lock()) members.push_back(std::move(member));
  }
  return members;
}

void ReplicaRing::break_off() {
  if (std::exchange(broken_, true)) return;
  for (const auto& member : members()) member->lost_neighbour();
}

std::shared_ptr<const ReplicaRing::Sum> ReplicaRing::contribute(std::uint32_t node, ChunkIndex chunk, Round round,
                                                                Sum sum) {
  auto& there = open_[{round, chunk.value}];
  there[node] = std::move(sum);
  if (there.size() < members_.size()) return nullptr;
  auto total = std::make_shared<Sum>();
  std::vector<std::vector<float>> values;
  for (auto& [from, part] : there) {
    total->weight += part.weight;
    values.push_back(std::move(part.values));
  }
  total->values = add_in_tree_order(std::move(values));
  open_.erase({round, chunk.value});
  return total;
}

std::shared_ptr<ReplicaRing> ReplicaRings::of(const ViewPlan& view) {
  auto& ring = rings_[{view.job, view.view}];
  if (!ring) ring = std::make_shared<ReplicaRing>(view.nodes);
  return ring;
}

void ReplicaRings::break_newest() {
  if (!rings_.empty()) rings_.rbegin()->second->break_off();
}

// ---- A view begins ----

ReplicaViewSim::ReplicaViewSim(JobWorld& world, WorkerSim& worker, std::shared_ptr<NodeJob> job, ReplicaDisk& disk)
    : world_(world),
      worker_(worker),
      job_(std::move(job)),
      view_(job_->view()),
      disk_(disk),
      ring_(world.rings.of(view_)),
      state_(std::make_unique<ReplicaState>(view_.plan, view_.layout, job_->parameters())),
      chunks_(view_.layout, view_.start),
      gather_(chunks_, job_->spec().ranks),
      newest_(view_.start),
      last_ns_(worker.now_ns()) {}

ReplicaViewSim::~ReplicaViewSim() {
  if (!kept_) ring_->break_off();
}

// Runs `action` after the delay, unless the view or its process has ended by then.
void ReplicaViewSim::after(std::uint64_t delay_ns, std::function<void()> action) {
  worker_.after(delay_ns, [weak = weak_from_this(), action = std::move(action)] {
    if (const auto alive = weak.lock()) action();
  });
}

void ReplicaViewSim::open() {
  if (view_.nodes > 1) worker_.publish({view_.job, view_.view, job_->spec().node, kHostKey, {std::byte{1}}});
  after(kTimeoutNs, [this] {
    if (!begun_) failed(LaneFailure::Kind::kRefused, ErrorCode::kTimeout, "a node has not said its address");
  });
  try_connect();
}

void ReplicaViewSim::peer_address(const PeerAddress& address) {
  published_.insert(address.node.value);
  try_connect();
}

void ReplicaViewSim::try_connect() {
  const std::uint32_t nodes = view_.nodes, before = (node() + nodes - 1) % nodes, after_it = (node() + 1) % nodes;
  const bool there = nodes == 1 || (published_.contains(before) && published_.contains(after_it));
  if (connected_ || closing_ || failed_ || !there) return;
  connected_ = true;
  if (ring_->broken()) return lost_neighbour();
  ring_->connected(node(), shared_from_this());
  if (node() == values_from()) {
    if (const Status values = first_values(); !values) {
      return failed(LaneFailure::Kind::kRefused, values.error().code, values.error().message);
    }
  }
  for (const auto& member : ring_->members()) member->try_begin();
}

// Loads the values that the view begins with, on the node that has them.
Status ReplicaViewSim::first_values() {
  values_ = initial_;
  if (job_->spec().init()) return {};
  const Status read = disk_.read(view_.start, [&](ChunkIndex chunk, const ChunkState& state) -> Status {
    arrays().take(chunk, view_.layout->chunk(chunk), state);
    return {};
  });
  values_ = read.has_value();
  return read;
}

void ReplicaViewSim::initial_values() {
  if (!job_->spec().init()) return;
  initial_ = true;
  if (!connected_) return;
  values_ = true;
  for (const auto& member : ring_->members()) member->try_begin();
}

bool ReplicaViewSim::cut_off() const {
  return std::ranges::any_of(ring_->members(), [&](const auto& other) {
    return world_.wires.cut(worker_.machine(), other->worker_.machine());
  });
}

// They are on their way as soon as all are connected.
void ReplicaViewSim::try_begin() {
  if (!ring_->all_connected()) return;
  const std::shared_ptr<ReplicaViewSim> first = ring_->members()[values_from()];
  if (!first->values_) return;
  after(world_.random.below(kMaxExchangeNs), [this] {
    if (begun_ || closing_ || failed_) return;
    if (ring_->broken() || !ring_->all_connected()) return lost_neighbour();
    if (cut_off()) return after(kRetryNs, [this] { try_begin(); });
    take_values(*ring_->members()[values_from()]);
    begun_ = true;
    for (std::uint32_t c = 0; c < view_.layout->chunks(); ++c) publish(ChunkIndex(c), view_.start);
    scan();
  });
}

void ReplicaViewSim::take_values(const ReplicaViewSim& first) {
  if (&first == this) return;
  for (std::uint32_t c = 0; c < view_.layout->chunks(); ++c) {
    const ChunkRange range = view_.layout->chunk(ChunkIndex(c));
    arrays().take(ChunkIndex(c), range, first.arrays().copy_of(ChunkIndex(c), range));
  }
}

// ---- Rounds ----

void ReplicaViewSim::scan() {
  if (failed_ || closing_ || !begun_) return;
  std::vector<LaneChunk*> newly;
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
    if (const Status taken = gather_.look(rank, job_->rank_words(rank), newly); !taken) {
      return world_.broken(worker_.name() + ": " + taken.error().message);
    }
  }
  for (const LaneChunk* chunk : newly) {
    std::vector<std::vector<float>> gradients;
    for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
      const float* values = job_->gradients(rank) + chunk->range.begin;
      gradients.emplace_back(values, values + chunk->range.elements);
    }
    const Round round = chunk->gradient.round;
    const auto sum = ring_->contribute(node(), chunk->index, round,
                                       {add_in_tree_order(std::move(gradients)), chunk->gradient.weight});
    if (!sum) continue;
    for (const auto& member : ring_->members()) {
      member->after(world_.random.below(kMaxExchangeNs),
                    [member = member.get(), index = chunk->index, round, sum] { member->get(index, round, sum); });
    }
  }
}

// Takes the sum of a chunk. Until that sum arrives, the node needs all other nodes.
void ReplicaViewSim::get(ChunkIndex chunk, Round round, const std::shared_ptr<const ReplicaRing::Sum>& sum) {
  if (failed_ || closing_) return;
  if (ring_->broken() || !ring_->all_connected()) return lost_neighbour();
  if (cut_off()) return after(kRetryNs, [this, chunk, round, sum] { get(chunk, round, sum); });
  state_->step(chunk, sum->values.data(), sum->weight, chunks_.at(chunk).gradient.settings);
  if (keeps_checkpoints()) keep(chunk, round);
  publish(chunk, round);
}

void ReplicaViewSim::publish(ChunkIndex chunk, Round round) {
  NodeGather::answered(chunks_.at(chunk));
  job_->lane_stats(0).answers.add();
  job_->publish(chunk, Version(round.value));
  const ChunkRange range = view_.layout->chunk(chunk);
  world_.judge.delivered(worker_.node(), job_->spec(), chunk, Version(round.value),
                         {job_->parameters() + range.begin, range.elements});
  world_.wake_trainers(worker_.node());
}

void ReplicaViewSim::lost_neighbour() {
  after(world_.random.below(kMaxNoticeNs), [this] {
    failed(LaneFailure::Kind::kViewOver, ErrorCode::kUnavailable, "the connection to another node has broken");
  });
}

void ReplicaViewSim::failed(LaneFailure::Kind kind, ErrorCode code, const std::string& what) {
  if (closing_ || std::exchange(failed_, true)) return;
  worker_.lane_failed(job_, {kind, 0, {code, "node " + std::to_string(node()) + ": " + what}});
}

// ---- Checkpoints (worker/allreduce/checkpointer.h) ----

bool ReplicaViewSim::due(Round round) const {
  const SnapshotConfig& config = view_.plan->config.snapshot;
  if (config.every_rounds != 0 && round.value % config.every_rounds == 0) return true;
  return config.every_s != 0 && worker_.now_ns() - last_ns_ >= config.every_s * 1000 * kMs;
}

void ReplicaViewSim::keep(ChunkIndex chunk, Round round) {
  if (round > newest_) {
    newest_ = round;
    if (!busy_ && due(round)) {
      busy_ = true;
      capturing_ = round;
      captured_.clear();
      last_ns_ = worker_.now_ns();
    }
  }
  if (!busy_ || round != capturing_) return;
  captured_[chunk.value] = arrays().copy_of(chunk, view_.layout->chunk(chunk));
  if (captured_.size() < view_.layout->chunks()) return;
  write(round, std::move(captured_), [weak = weak_from_this(), round](const Status& written) {
    const auto alive = weak.lock();
    if (!alive) return;
    alive->busy_ = false;
    if (written) alive->written_ = round;
  });
  captured_.clear();
}

// Goes on when the view is over, but not without its process.
void ReplicaViewSim::write(Round round, ReplicaDisk::State state, std::function<void(const Status&)> then) {
  world_.replicas_judge.kept(round, state);
  worker_.after(
      world_.scenario.disk_step_ns * (1 + state.size()),
      [&disk = disk_, round, state = std::move(state), then = std::move(then)] { then(disk.write(round, state)); });
}

// ---- A view ends ----

void ReplicaViewSim::close(bool keep) {
  if (std::exchange(closing_, true)) return;
  if (!keep || failed_) {
    ring_->break_off();
    kept_ = true;
    return;
  }
  if (!begun_) {  // as it began
    left_ = what_is_left({});
    ring_->break_off();
    kept_ = true;
    return;
  }
  ring_->goodbye(node());
  part_by_ns_ = worker_.now_ns() + kPartPatienceNs;
  part();
}

void ReplicaViewSim::part() {
  if (!ring_->all_parted() && !ring_->broken() && worker_.now_ns() < part_by_ns_) {
    return after(kRetryNs, [this] { part(); });
  }
  if (!keeps_checkpoints()) {
    kept_ = true;
  } else {
    write_last();
  }
}

void ReplicaViewSim::write_last() {
  if (busy_ && captured_.empty()) return after(kRetryNs, [this] { write_last(); });  // one is being written
  const Round reached(job_->min_version().value);
  const auto end = [this](const Status& saved) {
    left_ = what_is_left(saved);
    kept_ = true;
  };
  if (job_->max_version().value != reached.value) {
    return end(fail(ErrorCode::kStore, "its buckets are not all at one round"));
  }
  const bool had = view_.start.value == 0 || job_->spec().node == job_->spec().values_from;
  if ((reached == view_.start && had) || reached == written_) return end({});
  ReplicaDisk::State state;
  for (std::uint32_t c = 0; c < view_.layout->chunks(); ++c) {
    state[c] = arrays().copy_of(ChunkIndex(c), view_.layout->chunk(ChunkIndex(c)));
  }
  write(reached, std::move(state), [weak = weak_from_this(), reached, end](const Status& saved) {
    const auto alive = weak.lock();
    if (!alive) return;
    if (saved) alive->written_ = reached;
    end(saved);
  });
}

SnapshotDone ReplicaViewSim::left() const {
  return left_ ? *left_ : what_is_left(fail(ErrorCode::kUnavailable, "the view failed before"));
}

SnapshotDone ReplicaViewSim::what_is_left(const Status& saved) const {
  const Round reached = std::max(Round(job_->min_version().value), view_.start);
  if (saved) return {view_.job, view_.view, reached, true, 0, {}};
  return {view_.job,
          view_.view,
          std::max(written_, view_.start),
          false,
          0,
          "node 0's checkpoint of round " + std::to_string(reached.value) + ": " + saved.error().message};
}

}  // namespace tributary::sim
