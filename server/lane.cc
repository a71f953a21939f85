#include "server/lane.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "common/assert.h"
#include "common/clock.h"
#include "common/daemon_thread.h"
#include "common/zmq_util.h"
#include "server/lane_address.h"

namespace tributary {
namespace {

constexpr std::uint32_t kNoiseLines = 10;
constexpr std::uint64_t kNoiseIntervalMs = 10'000;
constexpr long kIdlePollMs = 1000;  // for the log limiter's last word; commands and messages wake the lane at once
constexpr std::string_view kIpc = "ipc://";

void add_stats(ShardStats& total, const ShardStats& stats) {
  total.pushes += stats.pushes;
  total.duplicates += stats.duplicates;
  total.rejected += stats.rejected;
  total.answers += stats.answers;
  total.steps += stats.steps;
  total.push_bytes += stats.push_bytes;
  total.answer_bytes += stats.answer_bytes;
  total.out_of_place_steps += stats.out_of_place_steps;
  total.starved += stats.starved;
  total.held_frames += stats.held_frames;
  total.held_bytes += stats.held_bytes;
  total.max_held_bytes = std::max(total.max_held_bytes, stats.max_held_bytes);
  total.withheld += stats.withheld;
}

Status restore_into(ShardCore& core, const RestoredChunk& chunk) {
  const std::vector<std::span<const float>> slots(chunk.slots.begin(), chunk.slots.end());
  std::vector<NodeResidual> residuals;
  for (const auto& [node, values] : chunk.residuals) residuals.push_back({node, values});
  return core.restore(chunk.chunk, chunk.version, chunk.step, chunk.params, slots,
                      {chunk.estimate, chunk.nodes, residuals}, chunk.clocks, chunk.gate);
}

void raise_to(LaneCounter& counter, std::uint64_t total) {
  counter.add(total - counter.value());
}

}  // namespace

Result<std::unique_ptr<Lane>> Lane::start(LaneOptions options, LaneListener& listener, Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<Lane> lane(new Lane(std::move(options), listener, std::move(logger), std::move(*wake)));
  if (Status bound = lane->bind(); !bound) return tl::unexpected(bound.error());
  lane->thread_ = start_thread("lane", lane->logger_, [&self = *lane] { self.run(); });
  return lane;
}

Lane::Lane(LaneOptions options, LaneListener& listener, Logger logger, EventFd wake)
    : options_(std::move(options)),
      listener_(listener),
      logger_(logger),
      noise_(std::move(logger), kNoiseLines, kNoiseIntervalMs),
      wake_(std::move(wake)),
      context_(1),
      socket_(context_, zmq::socket_type::router) {}

Status Lane::bind() {
  const Result<std::string> address = lane_bind_address(options_.bind, options_.lane);
  if (!address) return tl::unexpected(address.error());
  if (Status free = check_ipc_free(*address); !free) return free;
  set_common_options(socket_, kMaxMessage, kSendHighWater);
  socket_.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
  const Result<std::string> bound = bind_endpoint(socket_, *address);
  if (!bound) return tl::unexpected(bound.error());
  endpoint_ = advertised_endpoint(*bound, options_.advertise);
  if (bound->starts_with(kIpc)) ipc_path_ = bound->substr(kIpc.size());
  if (Status linked = links_.listen(new_link_name(options_.shard, options_.lane)); !linked) {
    logger_->warn("lane {}: workers on this machine will use sockets: {}", options_.lane.value, linked.error().message);
  }
  return {};
}

Lane::~Lane() {
  stop();
  // Buffers go home in this order: the cores' own, what workers on this machine were told (they have mapped the memory,
  // and nobody writes there any more), then (closing waits for it) what ZeroMQ had not sent, then the pools end.
  for (auto* jobs : {&jobs_, &parked_}) {
    for (auto& [id, job] : *jobs) retire(std::move(job));
    jobs->clear();
  }
  links_.end();
  socket_.close();
  context_.close();
  if (!ipc_path_.empty()) ::unlink(ipc_path_.c_str());
}

void Lane::stop() {
  if (!thread_.joinable()) return;
  post([this] { running_ = false; });
  thread_.join();
}

void Lane::run() {
  while (running_) {
    const bool more = receive_batch();
    const std::uint64_t now = steady_ms();
    if (dirty_ && now >= next_publish_ms_) publish(now);
    if (!retired_.empty()) free_retired();
    noise_.tick(now);
    const bool stopping = finish_stops(now);
    const bool trimming = trim_some(now);
    const bool soon = dirty_ || !retired_.empty() || stopping || links_.pending();
    poll_items_.clear();
    poll_items_.push_back({socket_.handle(), 0, ZMQ_POLLIN, 0});
    poll_items_.push_back({nullptr, wake_.fd(), ZMQ_POLLIN, 0});
    links_.add_poll_items(poll_items_, now);
    const long wait = more || trimming ? 0 : soon ? static_cast<long>(kPublishMs) : kIdlePollMs;
    const bool some = zmq_poll(poll_items_.data(), static_cast<int>(poll_items_.size()), wait) > 0;
    if (some && poll_items_[1].revents != 0) run_commands();
    const bool asked = some && std::any_of(poll_items_.begin() + 2, poll_items_.end(),
                                           [](const zmq::pollitem_t& item) { return item.revents != 0; });
    if (asked || links_.pending()) {
      links_.serve(steady_ms(), [this](const LinkRequest& request) { return find_pool(request); });
      dirty_ = true;
    }
  }
}

void Lane::captured(ChunkSnapshot snapshot) {
  listener_.lane_captured(std::move(snapshot));
}

void Lane::facts(const RoundFacts& facts) {
  listener_.lane_facts(options_.lane, facts);
}

void Lane::decide(const RoundDecision& decision) {
  post([this, decision] {
    const auto found = jobs_.find(decision.job);
    if (found != jobs_.end()) found->second.core->decide(decision);
  });
}

void Lane::post(std::function<void()> command) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  wake_.notify();
}

void Lane::run_commands() {
  wake_.drain();
  std::deque<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const std::function<void()>& command : commands) command();
  dirty_ = true;
}

void Lane::open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)] {
    retire(jobs_, job.job);
    retire(parked_, job.job);
    Job entry;
    entry.gauges = gauges;
    std::size_t chunks = 0, largest = 1;
    for (const ChunkIndex chunk : job.layout->chunks_owned_by(job.shard, job.lane)) {
      ++chunks;
      largest = std::max<std::size_t>(largest, job.layout->chunk(chunk).elements);
    }
    const int slots = job.optimizer->slots();
    const bool clocks = job.clocks.has_value(), gate = job.gate.has_value();
    entry.steady_blocks = ShardCore::steady_blocks(chunks, slots, job.pull, job.recovers, clocks ? job.nodes : 0, gate);
    entry.pool = std::make_unique<BufferPool>(
        largest * sizeof(float),
        ShardCore::pool_blocks(chunks, slots, job.pull, job.push, job.nodes, job.recovers, clocks, gate));
    entry.core = std::make_unique<ShardCore>(job, *entry.pool, static_cast<ShardOutput&>(*this));
    jobs_.emplace(job.job, std::move(entry));
  });
}

void Lane::reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)]() mutable {
    const JobId id = job.job;
    retire(jobs_, id);
    auto kept = parked_.extract(id);
    TRIB_ASSERT(!kept.empty());
    kept.mapped().gauges = std::move(gauges);
    kept.mapped().restored = kept.mapped().core->reopen(std::move(job));
    jobs_.insert(std::move(kept));
  });
}

void Lane::park(JobId job, ViewId view) {
  post([this, job, view] {
    if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
      found->second.core->stop(false, Round());
    }
    set_aside(job, view);
  });
}

// What is stopped goes where the next view finds it.
void Lane::set_aside(JobId job, ViewId view) {
  bool any = false;
  Version min, max;
  if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
    const ShardCore& core = *found->second.core;
    links_.end_view(job);
    publish(steady_ms());
    any = core.initialised();
    min = core.min_version();
    max = core.max_version();
    retire(parked_, job);
    if (any) {
      parked_.insert(jobs_.extract(found));
    } else {
      retire(jobs_, job);
    }
  }
  listener_.lane_parked(options_.lane, job, view, any, min, max);
}

void Lane::drop_parked(JobId job) {
  post([this, job] { retire(parked_, job); });
}

void Lane::restore(JobId job, RestoredChunk restored) {
  const std::size_t bytes = restored.bytes();
  {
    std::unique_lock lock(mutex_);
    restored_.wait(lock, [&] { return restore_bytes_ == 0 || restore_bytes_ + bytes <= kMaxRestoreBytes; });
    restore_bytes_ += bytes;
  }
  post([this, job, bytes, chunk = std::make_shared<RestoredChunk>(std::move(restored))]() mutable {
    Job& entry = jobs_.at(job);
    if (entry.restored) {
      try {
        entry.restored = restore_into(*entry.core, *chunk);
      } catch (const std::bad_alloc&) {
        entry.restored = fail(ErrorCode::kLimit, "no memory left for chunk " + std::to_string(chunk->chunk.value) +
                                                     "; use more servers or a smaller model");
      }
    }
    chunk.reset();
    {
      const std::lock_guard lock(mutex_);
      restore_bytes_ -= bytes;
    }
    restored_.notify_one();
  });
}

void Lane::opened(JobId job, ViewId view, bool restored) {
  post([this, job, view, restored] {
    Job& entry = jobs_.at(job);
    Status status = entry.restored;
    if (status && restored && !entry.core->initialised()) {
      status = fail(ErrorCode::kStore,
                    "the snapshot in the store lacks chunks of lane " + std::to_string(options_.lane.value));
    }
    publish(steady_ms());
    listener_.lane_opened(options_.lane, job, view, status);
    if (const std::optional<RoundFacts> known = entry.core->decided(); status && known) {
      listener_.lane_facts(options_.lane, *known);
    }
  });
}

void Lane::stop_job(JobId job, ViewId view, bool keep, Round round, bool park) {
  post([this, job, view, keep, round, park] {
    bool kept = false;
    if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
      Job& entry = found->second;
      kept = entry.core->stop(keep, round) && keep;
      publish(steady_ms());
      if (entry.core->keeping()) {
        entry.stop = Job::Stop{round, park};
        entry.patience = {options_.stop_timeout_ms, steady_ms()};
        return;
      }
      if (!park) {
        retire(std::move(entry));
        jobs_.erase(found);
      }
    }
    listener_.lane_stopped(options_.lane, job, view, round, kept);
    if (park) set_aside(job, view);
  });
}

void Lane::await_longer(JobId job, ViewId view) {
  post([this, job, view] {
    const auto found = jobs_.find(job);
    if (found != jobs_.end() && found->second.core->job().view == view) ++found->second.said;
  });
}

bool Lane::finish_stops(std::uint64_t now) {
  std::vector<JobId> over;
  bool waiting = false;
  for (auto& [id, entry] : jobs_) {
    if (!entry.stop) continue;
    const bool waits = entry.core->keeping() && !entry.patience.over(entry.said, now);
    waiting |= waits;
    if (!waits) over.push_back(id);
  }
  for (const JobId id : over) {
    const Job& entry = jobs_.at(id);
    const auto [round, park] = *entry.stop;
    const ViewId view = entry.core->job().view;
    const bool kept = !entry.core->keeping();
    if (!kept) {
      logger_->warn(
          "job {}: not all nodes sent their residuals of the stop at round {}, and none has said a word for "
          "{} ms ([limits] stop_timeout_s)",
          id.value, round.value, options_.stop_timeout_ms);
    }
    listener_.lane_stopped(options_.lane, id, view, round, kept);
    jobs_.at(id).stop.reset();
    if (park) {
      jobs_.at(id).core->stop(false, Round());
      set_aside(id, view);
    } else {
      retire(jobs_, id);
    }
  }
  return waiting;
}

void Lane::retire(std::unordered_map<JobId, Job>& jobs, JobId job) {
  auto found = jobs.extract(job);
  if (!found.empty()) retire(std::move(found.mapped()));
}

void Lane::retire(Job job) {
  job.preparer.end();
  ShardStats stats = job.core->stats();
  stats.held_frames = stats.held_bytes = stats.max_held_bytes = stats.withheld = 0;
  add_stats(closed_, stats);
  links_.end_view(job.core->job().job);
  job.core.reset();
  retired_.push_back(std::move(job.pool));
}

void Lane::free_retired() {
  const std::size_t freed = std::erase_if(retired_, [](const std::unique_ptr<BufferPool>& pool) {
    pool->trim(0);
    return pool->in_use() == 0;
  });
  if (freed != 0) dirty_ = true;
}

void Lane::publish(std::uint64_t now) {
  ShardStats total = closed_;
  std::size_t pool_bytes = 0;
  for (auto& [id, job] : jobs_) {
    add_stats(total, job.core->stats());
    pool_bytes += job.pool->allocated_bytes();
    job.gauges->min_version.store(job.core->min_version().value, std::memory_order_relaxed);
    job.gauges->max_version.store(job.core->max_version().value, std::memory_order_relaxed);
    job.gauges->initialised.store(job.core->initialised(), std::memory_order_relaxed);
    job.gauges->max_held_bytes.store(job.core->stats().max_held_bytes, std::memory_order_relaxed);
    job.gauges->links.store(links_.size_of(id), std::memory_order_relaxed);
    job.gauges->pool_bytes.store(job.pool->allocated_bytes(), std::memory_order_relaxed);
    job.gauges->withheld.store(job.core->stats().withheld, std::memory_order_relaxed);
    for (std::uint32_t node = 0; node < job.gauges->clocks.size(); ++node) {
      const auto [last, furthest] = job.core->clock_range(NodeRank(node));
      job.gauges->clocks[node].last.store(last.value, std::memory_order_relaxed);
      job.gauges->clocks[node].furthest.store(furthest.value, std::memory_order_relaxed);
    }
  }
  for (const auto& [id, job] : parked_) {
    add_stats(total, job.core->stats());
    pool_bytes += job.pool->allocated_bytes();
  }
  for (const auto& pool : retired_) pool_bytes += pool->allocated_bytes();
  raise_to(counters_.pushes, total.pushes);
  raise_to(counters_.duplicates, total.duplicates);
  raise_to(counters_.rejected, total.rejected);
  raise_to(counters_.answers, total.answers);
  raise_to(counters_.steps, total.steps);
  raise_to(counters_.out_of_place_steps, total.out_of_place_steps);
  raise_to(counters_.starved, total.starved);
  raise_to(counters_.push_bytes, total.push_bytes);
  raise_to(counters_.answer_bytes, total.answer_bytes);
  counters_.jobs.set(static_cast<double>(jobs_.size()));
  counters_.held_frames.set(static_cast<double>(total.held_frames));
  counters_.held_bytes.set(static_cast<double>(total.held_bytes));
  counters_.max_held_bytes.set(static_cast<double>(total.max_held_bytes));
  counters_.withheld.set(static_cast<double>(total.withheld));
  counters_.pool_bytes.set(static_cast<double>(pool_bytes));
  counters_.max_pool_bytes.set(std::max(counters_.max_pool_bytes.value(), static_cast<double>(pool_bytes)));
  counters_.links.set(static_cast<double>(links_.size()));
  counters_.mapped_bytes.set(static_cast<double>(links_.mapped_bytes()));
  dirty_ = false;
  next_publish_ms_ = now + kPublishMs;
}

}  // namespace tributary
