#include "worker/node/lane.h"

#include <algorithm>

#include "common/base/clock.h"

namespace tributary {

Result<std::unique_ptr<WorkerLane>> WorkerLane::start(WorkerLaneOptions options, WorkerLaneListener& listener,
                                                      Logger logger) {
  auto bells = Bells::create();
  if (!bells) return tl::unexpected(bells.error());
  std::unique_ptr<WorkerLane> self(new WorkerLane(options, listener, std::move(logger), std::move(*bells)));
  self->NodeLane::start("lane");
  return self;
}

WorkerLane::WorkerLane(WorkerLaneOptions options, WorkerLaneListener& listener, Logger logger, Bells bells)
    : NodeLane(listener, std::move(logger), std::move(bells)), options_(options), context_(1) {}

WorkerLane::~WorkerLane() {
  stop();
}

void WorkerLane::open(std::shared_ptr<NodeJob> job) {
  jobs_held_.fetch_add(1, std::memory_order_acq_rel);
  RedoRing::Use ring;  // counted before anybody can look
  if (job->spec().redo) ring = RedoRing::use(job->spec().redo);
  command([this, job = std::move(job), ring = std::move(ring)]() mutable {
    auto opened = JobConnections::open(job, *this, options_, context_);
    if (opened) {
      (*opened)->hold(std::move(ring));
      jobs_.push_back(std::move(*opened));
      return;
    }
    jobs_held_.fetch_sub(1, std::memory_order_acq_rel);
    failed(job, {LaneFailure::Kind::kRefused, 0, opened.error()});
  });
}

void WorkerLane::initial_values(std::shared_ptr<NodeJob> job) {
  command([this, job = std::move(job)] {
    if (JobConnections* found = find(job.get())) found->job().initial_values();
  });
}

void WorkerLane::trace(std::shared_ptr<NodeJob> job, std::shared_ptr<TraceBuffer> buffer) {
  command([this, job = std::move(job), buffer = std::move(buffer)] {
    if (JobConnections* found = find(job.get())) found->job().trace(buffer);
  });
}

void WorkerLane::close(std::shared_ptr<NodeJob> job, bool keep) {
  if (keep) jobs_keeping_.fetch_add(1, std::memory_order_acq_rel);  // before anybody can look
  command([this, job = std::move(job), keep]() mutable {
    const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->memory() == job; });
    const std::uint64_t now = steady_ms();
    if (keep && (at == jobs_.end() || !(*at)->job().keep_residuals())) {
      jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
      keep = false;
    }
    if (at == jobs_.end()) return;
    if (keep) {
      keeping_.push_back({std::move(*at), now, {options_.stop_timeout_ms, now}});
    } else {
      (*at)->close();
      closing_.push_back({std::move(*at), now, {0, 0}});
    }
    jobs_.erase(at);
  });
}

void WorkerLane::finish_keeping(std::uint64_t now) {
  for (auto at = keeping_.begin(); at != keeping_.end();) {
    const bool late = at->patience.over(at->job->job().heard(), now);
    if (!at->job->job().kept() && !late) {
      ++at;
      continue;
    }
    if (!at->job->job().kept()) {
      logger()->warn(
          "job '{}': no server has said a word for {} ms; {} residuals are kept so far, and the last snapshot stands",
          at->job->memory()->view().name(), options_.stop_timeout_ms, at->job->job().residuals_kept());
    }
    at->job->close();
    closing_.push_back({std::move(at->job), now, {0, 0}});
    at = keeping_.erase(at);
    jobs_keeping_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

JobConnections* WorkerLane::find(const NodeJob* job) {
  const auto at = std::ranges::find_if(jobs_, [&](const auto& held) { return held->memory().get() == job; });
  return at == jobs_.end() ? nullptr : at->get();
}

void WorkerLane::finish_closing(std::uint64_t now) {
  std::erase_if(closing_, [&](Closing& entry) {
    if (entry.job->outstanding() == 0) {
      jobs_held_.fetch_sub(1, std::memory_order_acq_rel);
      return true;
    }
    if (!entry.warned && now - entry.since_ms > kLentPatienceMs) {
      entry.warned = true;
      logger()->warn(
          "job '{}': ZeroMQ still holds {} messages {} ms after its sockets were closed; their memory stays mapped",
          entry.job->memory()->view().name(), entry.job->outstanding(), now - entry.since_ms);
    }
    return false;
  });
}

void WorkerLane::run() {
  std::vector<zmq::pollitem_t> items;
  std::uint64_t next_tick_ns = 0;
  bool more = false;  // a connection has messages beyond its batch
  while (!stopping()) {
    items.clear();
    items.push_back({nullptr, commands_.fd(), ZMQ_POLLIN, 0});
    items.push_back({nullptr, doorbell_.fd(), ZMQ_POLLIN, 0});
    for (auto& job : jobs_) job->add_poll_items(items);
    for (auto& entry : keeping_) entry.job->add_poll_items(items);
    zmq_poll(items.data(), static_cast<int>(items.size()), more ? 0 : closing_.empty() ? kTickMs : kClosingTickMs);

    commands_.run();
    const bool rung = items[1].revents != 0;
    if (rung) doorbell_.drain();
    more = false;
    for (auto& job : jobs_) {
      job->poll_links();
      more |= job->receive(kBatch);
      job->job().poll_reducer();
      if (rung) job->job().scan();
      job->job().publish();
    }
    for (auto& entry : keeping_) {
      more |= entry.job->receive(kBatch);
      entry.job->job().poll_reducer();
    }
    const std::uint64_t now = steady_ns();
    if (now >= next_tick_ns) {
      for (auto& job : jobs_) job->tick();
      for (auto& entry : keeping_) entry.job->tick();
      next_tick_ns = now + kTickMs * 1'000'000ull;
    }
    if (!keeping_.empty()) finish_keeping(now / 1'000'000);
    if (!closing_.empty()) finish_closing(now / 1'000'000);
  }
  for (auto& job : jobs_) job->close();
  for (auto& entry : keeping_) entry.job->close();
  context_.close();  // returns when ZeroMQ's threads are done: nothing is lent any more
  jobs_.clear();
  keeping_.clear();
  closing_.clear();
}

}  // namespace tributary
