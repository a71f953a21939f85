#include "worker/allreduce/allreduce_lane.h"

#include <poll.h>

#include <algorithm>

#include "common/base/clock.h"

namespace tributary {

Result<std::unique_ptr<AllreduceLane>> AllreduceLane::start(WorkerConfig config, WorkerLaneListener& listener,
                                                            AllreducePort& port, Logger logger, std::uint16_t streams) {
  auto bells = Bells::create();
  if (!bells) return tl::unexpected(bells.error());
  std::unique_ptr<AllreduceLane> self(
      new AllreduceLane(std::move(config), listener, port, std::move(logger), std::move(*bells), streams));
  self->NodeLane::start("all-reduce lane");
  return self;
}

AllreduceLane::AllreduceLane(WorkerConfig config, WorkerLaneListener& listener, AllreducePort& port, Logger logger,
                             Bells bells, std::uint16_t streams)
    : NodeLane(listener, std::move(logger), std::move(bells)), means_{*this, std::move(config), streams, port} {}

AllreduceLane::~AllreduceLane() {
  stop();
}

std::uint64_t AllreduceLane::bytes_needed(const NodeJobSpec& spec) {
  const Layout& layout = *spec.view->layout;
  const JobPlan& plan = *spec.view->plan;
  const auto slots = static_cast<std::uint64_t>(plan.optimizer->slots());
  const std::uint64_t flat_bytes = layout.flat_elements() * sizeof(float);
  const SnapshotConfig& snapshot = plan.config.snapshot;
  const bool copies = keeps_checkpoints(spec.node) && (snapshot.every_s != 0 || snapshot.every_rounds != 0);
  const std::uint64_t state = slots * flat_bytes + (copies ? (1 + slots) * flat_bytes : 0);
  if (spec.allreduce_devices) return state;  // as the view begins and ends with it
  return state +
         HostExchange::staging_bytes(layout, RingShape::of(spec).here, HostExchange::streams_of(0, layout.chunks()));
}

void AllreduceLane::open(std::shared_ptr<NodeJob> job) {
  jobs_held_.fetch_add(1, std::memory_order_acq_rel);
  command([this, job = std::move(job)] {
    jobs_.push_back(std::make_unique<AllreduceJob>(job, means_));
    std::erase_if(early_, [&](const PeerAddress& address) {
      const bool ours = address.job == job->view().job && address.view == job->view().view;
      if (ours) jobs_.back()->peer_address(address);
      return ours;
    });
  });
}

void AllreduceLane::initial_values(std::shared_ptr<NodeJob> job) {
  command([this, job = std::move(job)] {
    const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->job() == job; });
    if (at != jobs_.end()) (*at)->initial_values();
  });
}

void AllreduceLane::peer_address(PeerAddress address) {
  command([this, address = std::move(address)]() mutable {
    const auto at = std::ranges::find_if(jobs_, [&](const auto& held) {
      return held->job()->view().job == address.job && held->job()->view().view == address.view;
    });
    if (at != jobs_.end()) return (*at)->peer_address(address);
    // The address is of a view that is over, or not open yet. The oldest ones are dropped first.
    if (early_.size() >= kMaxEarly) early_.erase(early_.begin());
    early_.push_back(std::move(address));
  });
}

void AllreduceLane::close(std::shared_ptr<NodeJob> job, bool clean) {
  if (clean) jobs_keeping_.fetch_add(1, std::memory_order_acq_rel);  // before any reader of it
  command([this, job = std::move(job), clean]() mutable {
    const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->job() == job; });
    if (at == jobs_.end()) {
      if (!clean) return;
      jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
      if (job->spec().node.value == 0) {
        means_.port.checkpointed(
            {job->view().job, job->view().view, {}, false, 0, "node 0's lane could not begin the view"});
      }
      return;
    }
    (*at)->close(clean);
    closing_.push_back({std::move(*at), clean});
    jobs_.erase(at);
  });
}

void AllreduceLane::finish_closing() {
  for (Closing& entry : closing_) {
    if (!entry.owes_outcome || !entry.job->has_outcome()) continue;
    entry.owes_outcome = false;
    // Done before the worker can be taken for idle.
    if (entry.job->job()->spec().node.value == 0) means_.port.checkpointed(entry.job->outcome());
    jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
  }
  std::erase_if(closing_, [&](Closing& entry) {
    if (!entry.job->ended()) return false;
    entry.job.reset();
    jobs_held_.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  });
}

void AllreduceLane::run() {
  std::uint64_t next_tick_ms = 0;
  while (!stopping()) {
    pollfd polled[] = {{commands_.fd(), POLLIN, 0}, {doorbell_.fd(), POLLIN, 0}};
    ::poll(polled, 2, kTickMs);
    commands_.run();
    if (polled[1].revents != 0) {
      doorbell_.drain();
      for (const auto& job : jobs_) job->scan();
    }
    finish_closing();
    const std::uint64_t now = steady_ms();
    if (now >= next_tick_ms) {
      for (const auto& job : jobs_) job->tick(now);
      next_tick_ms = now + kTickMs;
    }
  }
  jobs_.clear();
  closing_.clear();
}

}  // namespace tributary
