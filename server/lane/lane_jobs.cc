#include "server/lane/lane_jobs.h"

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/base/assert.h"
#include "server/shard/chunk_arrays.h"

namespace tributary {
namespace {

constexpr std::uint64_t kIdleMs = 1000;  // between turns without work

Payload copy_of(std::span<const std::byte> bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, memory.get());
  const std::span<std::byte> own(memory.get(), bytes.size());
  return Payload::alone(std::move(memory), own);
}

}  // namespace

LaneJobs::LaneJobs(LaneJobsOptions options, LaneOutput& output, LaneListener& listener)
    : options_(options), output_(output), listener_(listener) {}

LaneJobs::Job* LaneJobs::find(JobId job, ViewId view) {
  const auto found = jobs_.find(job);
  return found != jobs_.end() && found->second.core->job().view->view == view ? &found->second : nullptr;
}

const ShardCore* LaneJobs::core(JobId job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.core.get();
}

const ShardCore* LaneJobs::parked(JobId job) const {
  const auto found = parked_.find(job);
  return found == parked_.end() ? nullptr : found->second.core.get();
}

// ---- Messages: to the job's core, and back ----

void LaneJobs::receive(PeerId from, const DataMessage& message, Received received) {
  dirty_ = true;
  std::visit([&](const auto& m) { dispatch(from, m, received); }, message);
}

template <class M>
void LaneJobs::dispatch(PeerId from, const M& message, Received& received) {
  constexpr bool kWithPayload = std::is_same_v<M, Push> || std::is_same_v<M, Init>;
  constexpr bool kToServer = kWithPayload || std::is_same_v<M, Pull> || std::is_same_v<M, Query>;
  Round round{};
  if constexpr (requires { message.round; }) round = message.round;
  if constexpr (!kToServer) {
    counters_.malformed.add();
    output_.refused("refused a message that only servers send");
    // An error is never answered with an error: two peers that misunderstand each other would continue forever.
    if constexpr (!std::is_same_v<M, ErrorReply>) {
      refuse(from, message.key, round, ErrorCode::kMalformed,
             "answers, acks and resends come from servers; a client sends pushes, initial values, pulls and queries");
    }
  } else {
    const bool in_memory = received.place.bytes != 0;
    const int frames = kWithPayload && !in_memory ? 2 : 1;
    if (received.frames != frames || (in_memory && !kWithPayload)) {
      counters_.malformed.add();
      output_.refused("refused a message of " + std::to_string(received.frames) + " frames");
      return refuse(from, message.key, round, ErrorCode::kMalformed,
                    "the message has " + std::to_string(received.frames) + " frames instead of " +
                        std::to_string(frames) +
                        (kWithPayload && !in_memory ? " (header and payload)" : " (a header without payload)"));
    }
    const auto found = jobs_.find(message.key.job);
    if (found == jobs_.end()) {
      counters_.unknown_job.add();
      output_.refused("refused a message for job " + std::to_string(message.key.job.value) +
                      ", which is not open here");
      return refuse(from, message.key, round, ErrorCode::kUnknownJob,
                    "job " + std::to_string(message.key.job.value) + " is not open on server " +
                        std::to_string(options_.shard.value) + " lane " + std::to_string(options_.lane.value) +
                        "; attach through the worker, which learns from the coordinator where a job's chunks are");
    }
    ShardCore& core = *found->second.core;
    if constexpr (std::is_same_v<M, Push>) {
      if (trace_) trace_->received(message, output_.now_ns());
    }
    if (message.key.view == core.job().view->view) ++found->second.said;
    // A message of another view is the core's to refuse, which does not look at what it brings.
    if (received.place.link != 0 && message.key.view == core.job().view->view) {
      if (Status bound = told_.bind(from, message.key, received.place); !bound) {
        return refuse_malformed(from, message.key, round, std::move(bound.error()));
      }
    }
    if constexpr (kWithPayload) {
      if (!received.payload && message.key.view != core.job().view->view) received.payload = Payload();
      if (!received.payload) return refuse_malformed(from, message.key, round, std::move(received.payload.error()));
      Payload payload = std::move(*received.payload);
      (in_memory ? counters_.shared_payload_bytes : counters_.socket_payload_bytes).add(payload.bytes().size());
      if constexpr (std::is_same_v<M, Push>) {
        // A residual may be held beyond the answer, when its author writes there again.
        if (in_memory && message.residual != ResidualUse::kNone) payload = copy_of(payload.bytes());
        core.on_push(from, message, std::move(payload));
      }
      if constexpr (std::is_same_v<M, Init>) core.on_init(from, message, payload.bytes());
    }
    if constexpr (std::is_same_v<M, Pull>) core.on_pull(from, message);
    if constexpr (std::is_same_v<M, Query>) core.on_query(from, message);
  }
}

Result<LaneJobs::Shared> LaneJobs::shared(const LinkRequest& request) const {
  const auto found = jobs_.find(request.job);
  if (found == jobs_.end() || found->second.core->job().view->view != request.view ||
      request.node.value >= found->second.core->job().view->nodes) {
    return fail(ErrorCode::kUnknownJob, "job " + std::to_string(request.job.value) + " with node " +
                                            std::to_string(request.node.value) + " in view " +
                                            std::to_string(request.view.value) + " is not open here");
  }
  return Shared{found->second.pool, found->second.core->chunks()};
}

void LaneJobs::refuse_malformed(PeerId from, const ChunkKey& key, Round round, Error error) {
  counters_.malformed.add();
  output_.refused("refused a message: " + error.message);
  refuse(from, key, round, error.code, std::move(error.message));
}

void LaneJobs::refuse(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message) {
  output_.send(from, ErrorReply{key, round, code, std::move(message)}, {}, {});
}

// To a worker that shares memory goes the place of the values, with a share in what lies there.
void LaneJobs::send(PeerId to, const DataMessage& message, const BufferRef& values) {
  if (const auto* error = std::get_if<ErrorReply>(&message)) output_.refused("refused: " + error->message);
  const auto* answer = std::get_if<Answer>(&message);
  if (answer && trace_) trace_->answered(answer->key, answer->version, output_.now_ns());
  if (!values) return output_.send(to, message, {}, {});
  const ChunkKey key = std::visit([](const auto& m) { return m.key; }, message);
  const std::optional<PayloadPlace> place = told_.size() == 0 ? PayloadPlace{} : told_.tell(to, key, values);
  if (!place) return;
  (place->bytes == 0 ? counters_.socket_payload_bytes : counters_.shared_payload_bytes).add(values.size());
  output_.send(to, message, values, *place);
}

void LaneJobs::captured(ChunkSnapshot snapshot) {
  listener_.lane_captured(std::move(snapshot));
}
void LaneJobs::facts(const RoundFacts& facts) {
  listener_.lane_facts(options_.lane, facts);
}

// ---- Commands ----

void LaneJobs::open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  dirty_ = true;
  const ViewPlan& view = *job.view;
  retire(jobs_, view.job);
  retire(parked_, view.job);
  Job entry;
  entry.gauges = std::move(gauges);
  std::size_t chunks = 0, largest = 1;
  for (const ChunkIndex chunk : view.layout->chunks_owned_by(job.shard, job.lane)) {
    ++chunks;
    largest = std::max<std::size_t>(largest, view.layout->chunk(chunk).elements);
  }
  const ChunkArrays arrays = chunk_arrays(job);
  entry.steady_blocks = chunks * arrays.steady();
  entry.pool = std::make_shared<BufferPool>(largest * sizeof(float), chunks * arrays.most());
  entry.preparing = output_.preparing();
  entry.core = std::make_unique<ShardCore>(job, *entry.pool, static_cast<ShardOutput&>(*this));
  jobs_.emplace(view.job, std::move(entry));
}

void LaneJobs::reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  dirty_ = true;
  const JobId id = job.view->job;
  retire(jobs_, id);
  auto kept = parked_.extract(id);
  TRIB_ASSERT(!kept.empty());
  kept.mapped().gauges = std::move(gauges);
  kept.mapped().restored = kept.mapped().core->reopen(std::move(job));
  jobs_.insert(std::move(kept));
}

void LaneJobs::park(JobId job, ViewId view) {
  if (Job* entry = find(job, view)) entry->core->stop(false, Round());
  set_aside(job, view);
}

// Parks a stopped job for its next view.
void LaneJobs::set_aside(JobId job, ViewId view) {
  bool any = false;
  Version min, max;
  if (const Job* entry = find(job, view)) {
    told_.end_view(job);
    publish(output_.now_ms());
    any = entry->core->initialised();
    min = entry->core->min_version();
    max = entry->core->max_version();
    retire(parked_, job);
    if (any) {
      parked_.insert(jobs_.extract(job));
    } else {
      retire(jobs_, job);
    }
  }
  listener_.lane_parked(options_.lane, job, view, any, min, max);
}

void LaneJobs::drop_parked(JobId job) {
  retire(parked_, job);
}

void LaneJobs::restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) {
  Job* entry = find(job, view);
  if (!entry || !entry->restored) return;
  try {
    entry->restored = entry->core->restore(chunk, state);
  } catch (const std::bad_alloc&) {
    entry->restored = fail(ErrorCode::kLimit, "no memory left for chunk " + std::to_string(chunk.value) +
                                                  "; use more servers or a smaller model");
  }
}

void LaneJobs::opened(JobId job, ViewId view, bool restored) {
  Job& entry = jobs_.at(job);
  Status status = entry.restored;
  if (status && restored && !entry.core->initialised()) {
    status = fail(ErrorCode::kStore,
                  "the snapshot in the store lacks chunks of lane " + std::to_string(options_.lane.value));
  }
  publish(output_.now_ms());
  listener_.lane_opened(options_.lane, job, view, status);
  if (const std::optional<RoundFacts> known = entry.core->decided(); status && known) {
    listener_.lane_facts(options_.lane, *known);
  }
}

void LaneJobs::decide(const RoundDecision& decision) {
  dirty_ = true;
  if (trace_) trace_->decided(output_.now_ns());
  if (const auto found = jobs_.find(decision.job); found != jobs_.end()) found->second.core->decide(decision);
}

void LaneJobs::stop_job(JobId job, ViewId view, bool keep, Round round, bool park) {
  bool kept = false;
  if (const ShardCore* aside = parked(job); aside && aside->job().view->view == view && !jobs_.contains(job)) {
    jobs_.insert(parked_.extract(job));
  }
  if (Job* entry = find(job, view)) {
    kept = entry->core->stop(keep, round) && keep;
    const std::uint64_t now = output_.now_ms();
    publish(now);
    if (entry->core->keeping()) {
      entry->stop = Job::Stop{round, park, {options_.stop_timeout_ms, now}};
      return;
    }
    if (!park) retire(jobs_, job);
  }
  listener_.lane_stopped(options_.lane, job, view, round, kept);
  if (park) set_aside(job, view);
}

void LaneJobs::await_longer(JobId job, ViewId view) {
  if (Job* entry = find(job, view)) ++entry->said;
}

void LaneJobs::trace(JobId job, ViewId view, std::shared_ptr<TraceBuffer> buffer) {
  trace_.reset();
  const Job* entry = find(job, view);
  if (!entry || !buffer) return;
  trace_ = std::make_unique<ServerLaneTrace>(job, view, entry->core->job().view->layout->chunks(), std::move(buffer));
}

bool LaneJobs::finish_stops(std::uint64_t now) {
  std::vector<JobId> over;
  bool waiting = false;
  for (auto& [id, entry] : jobs_) {
    if (!entry.stop) continue;
    const bool waits = entry.core->keeping() && !entry.stop->patience.over(entry.said, now);
    waiting |= waits;
    if (!waits) over.push_back(id);
  }
  for (const JobId id : over) {
    Job& entry = jobs_.at(id);
    const Round round = entry.stop->round;
    const bool park = entry.stop->park, kept = !entry.core->keeping();
    const ViewId view = entry.core->job().view->view;
    if (!kept) {
      output_.warn("job " + std::to_string(id.value) + ": not all nodes sent their residuals of the stop at round " +
                   std::to_string(round.value) + ", and none has said a word for " +
                   std::to_string(options_.stop_timeout_ms) + " ms ([limits] stop_timeout_s)");
    }
    listener_.lane_stopped(options_.lane, id, view, round, kept);
    entry.stop.reset();
    if (park) {
      entry.core->stop(false, Round());
      set_aside(id, view);
    } else {
      retire(jobs_, id);
    }
  }
  return waiting;
}

// ---- Snapshots, and the memory that their copy-on-write needs ----

void LaneJobs::prepare_snapshot(JobId job, ViewId view) {
  Job* entry = find(job, view);
  if (!entry) return;
  entry->preparing->end();
  entry->trim_at_ms = 0;
  entry->gauges->prepared.store(false, std::memory_order_relaxed);
  entry->preparing->begin(*entry->pool, entry->steady_blocks,
                          [gauges = entry->gauges] { gauges->prepared.store(true, std::memory_order_relaxed); });
}

void LaneJobs::snapshot_at(JobId job, ViewId view, Round round) {
  dirty_ = true;
  Job* entry = find(job, view);
  const bool started = entry && entry->core->snapshot_at(round);
  if (started) {
    // Whatever is not there yet: the round is a little ahead.
    entry->trim_at_ms = 0;
    entry->preparing->begin(*entry->pool, entry->steady_blocks, [] {});
    entry->gauges->prepared.store(false, std::memory_order_relaxed);
  }
  listener_.lane_snapshot(options_.lane, job, view, round, started);
}

void LaneJobs::snapshot_written(JobId job) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  found->second.preparing->end();
  found->second.trim_at_ms = std::max<std::uint64_t>(output_.now_ms() + options_.idle_memory_ms, 1);
}

bool LaneJobs::trim_some(std::uint64_t now) {
  bool more = false;
  for (auto& [id, job] : jobs_) {
    if (job.trim_at_ms == 0 || now < job.trim_at_ms) continue;
    const std::size_t blocks = std::max<std::size_t>(kTrimBytes / job.pool->block_bytes(), 1);
    if (job.pool->trim(job.steady_blocks, blocks)) job.trim_at_ms = 0;
    more |= job.trim_at_ms != 0;
    dirty_ = true;
  }
  return more;
}

// ---- Jobs that are over ----

void LaneJobs::retire(Jobs& jobs, JobId job) {
  auto found = jobs.extract(job);
  if (!found.empty()) retire(std::move(found.mapped()));
}

void LaneJobs::retire(Job job) {
  dirty_ = true;
  job.preparing->end();
  ShardStats stats = job.core->stats();
  keep_totals_only(stats);
  add_counts(closed_, stats);
  if (trace_ && trace_->is_of(job.core->job().view->job)) trace_.reset();
  told_.end_view(job.core->job().view->job);
  job.core.reset();
  retired_.push_back(std::move(job.pool));
}

std::vector<std::shared_ptr<BufferPool>> LaneJobs::end() {
  for (Jobs* jobs : {&jobs_, &parked_}) {
    for (auto& [id, job] : *jobs) retire(std::move(job));
    jobs->clear();
  }
  return std::move(retired_);
}

std::uint64_t LaneJobs::turn() {
  const std::uint64_t now = output_.now_ms();
  if (dirty_ && now >= next_publish_ms_) publish(now);
  const std::size_t freed = std::erase_if(retired_, [](const std::shared_ptr<BufferPool>& pool) {
    pool->trim(0);
    return pool->in_use() == 0;
  });
  if (freed != 0) dirty_ = true;
  const bool stopping = finish_stops(now);
  if (trim_some(now)) return 0;
  return dirty_ || stopping || !retired_.empty() ? kPublishMs : kIdleMs;
}

void LaneJobs::publish(std::uint64_t now) {
  ShardStats total = closed_;
  std::size_t pool_bytes = 0;
  for (auto& [id, job] : jobs_) {
    add_counts(total, job.core->stats());
    pool_bytes += job.pool->allocated_bytes();
    job.gauges->min_version.store(job.core->min_version().value, std::memory_order_relaxed);
    job.gauges->max_version.store(job.core->max_version().value, std::memory_order_relaxed);
    job.gauges->initialised.store(job.core->initialised(), std::memory_order_relaxed);
    job.gauges->max_held_bytes.store(job.core->stats().max_held_bytes, std::memory_order_relaxed);
    job.gauges->links.store(told_.size_of(id), std::memory_order_relaxed);
    job.gauges->pool_bytes.store(job.pool->allocated_bytes(), std::memory_order_relaxed);
    job.gauges->withheld.store(job.core->stats().withheld, std::memory_order_relaxed);
    for (std::uint32_t node = 0; node < job.gauges->clocks.size(); ++node) {
      const auto [last, furthest] = job.core->clock_range(NodeRank(node));
      job.gauges->clocks[node].last.store(last.value, std::memory_order_relaxed);
      job.gauges->clocks[node].furthest.store(furthest.value, std::memory_order_relaxed);
    }
  }
  for (const auto& [id, job] : parked_) {
    add_counts(total, job.core->stats());
    pool_bytes += job.pool->allocated_bytes();
  }
  for (const auto& pool : retired_) pool_bytes += pool->allocated_bytes();
  publish_counts(counters_, total);
  counters_.jobs.set(jobs_.size());
  counters_.pool_bytes.set(pool_bytes);
  counters_.max_pool_bytes.set(std::max<std::uint64_t>(counters_.max_pool_bytes.value(), pool_bytes));
  counters_.links.set(told_.size());
  dirty_ = false;
  next_publish_ms_ = now + kPublishMs;
}

}  // namespace tributary
