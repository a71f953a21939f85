#include "tests/sim/redo_logs_sim.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tributary::sim {

RedoLogsSim::RedoLogsSim(Process& owner, Disk& disk, const std::vector<StoredJob>& stored, Options options)
    : owner_(owner), disk_(disk), options_(options) {
  std::erase_if(disk_.logs, [&](const auto& entry) {
    return std::ranges::find(stored, entry.first, &StoredJob::job) == stored.end();
  });
  for (auto& [id, log] : disk_.logs) {
    if (options_.checks) {
      const auto bad = std::ranges::find_if(log.records, [](const auto& r) { return r.lost || r.torn; });
      log.records.erase(bad, log.records.end());
    }
    const auto job = std::make_shared<Job>();
    job->plan.job = id;
    job->index.set_chunks(log.chunks);
    for (Disk::LogRecord& record : log.records) {
      record.synced = true;
      if (record.cut) {
        job->index.cut(*record.cut);
      } else {
        job->index.note(record.step.chunk, record.step.version);
      }
    }
    job->status.range = job->index.range();
    jobs_.emplace(id, job);
  }
}

std::shared_ptr<RedoLogsSim::Job> RedoLogsSim::find(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

// Unless the job has been dropped by then.
void RedoLogsSim::later(const std::shared_ptr<Job>& job, std::uint64_t delay_ns, void (RedoLogsSim::*what)(Job&)) {
  owner_.after(delay_ns, [this, job, what] {
    if (find(job->plan.job) == job) (this->*what)(*job);
  });
}

void RedoLogsSim::begin(const Plan& plan, std::optional<Round> after) {
  std::shared_ptr<Job>& job = jobs_[plan.job];
  if (!job) {
    job = std::make_shared<Job>();
    job->anew = !after;
  }
  job->plan = plan;
  job->begun = true;
  job->index.set_chunks(plan.chunks);
  if (after && options_.cuts) job->queue.cut(Version(after->value));
  work(*job);
}

// What is in hand is the first of the queue again.
void RedoLogsSim::give_back(Job& job) {
  for (std::size_t i = job.in_hand.size(); i > 0; --i) job.queue.put_back(std::move(job.in_hand[i - 1]));
  job.in_hand.clear();
}

void RedoLogsSim::drop(JobId id) {
  const std::shared_ptr<Job> job = find(id);
  if (!job) return;
  jobs_.erase(id);
  disk_.logs.erase(id);
  RedoQueue::Calls flushed = std::exchange(job->flushed, {});
  give_back(*job);
  std::ranges::move(job->queue.clear(), std::back_inserter(flushed));
  for (const auto& call : flushed) call();
}

void RedoLogsSim::append(LoggedStep step) {
  const std::shared_ptr<Job> job = find(step.job);
  if (!job || !job->begun) return;
  if (!job->plan.waits && !job->status.error.empty() && owner_.now_ns() < job->retry_ns) {
    ++job->status.dropped;
    return;
  }
  job->queue.append(std::move(step));
  work(*job);
}

void RedoLogsSim::trim(JobId id, Round round) {
  const std::shared_ptr<Job> job = find(id);
  if (!job) return;
  auto& records = disk_log(*job).records;
  while (!records.empty()) {
    const std::uint32_t file = records.front().file;
    const auto end = std::ranges::find_if(records, [&](const auto& record) { return record.file != file; });
    if (std::any_of(records.begin(), end, [&](const auto& r) { return r.step.version.value > round.value; })) break;
    if (job->file == file) job->file.reset();
    records.erase(records.begin(), end);
  }
  job->dirty = std::ranges::any_of(records, [](const auto& record) { return !record.synced; });
  job->retry_ns = 0;
  if (!job->busy) job->status.range = job->index.range();
  work(*job);
}

void RedoLogsSim::flush(JobId id, std::function<void()> done) {
  const std::shared_ptr<Job> job = find(id);
  if (options_.flushes && job && job->status.error.empty() && (job->busy || !job->queue.empty())) {
    job->queue.when_flushed(std::move(done));
    return work(*job);
  }
  done();
}

LoggedRounds RedoLogsSim::range(JobId id) const {
  const std::shared_ptr<Job> job = find(id);
  return job ? job->queue.valid(job->status.range) : LoggedRounds{};
}

std::optional<RedoLogStatus> RedoLogsSim::status(JobId id) const {
  const std::shared_ptr<Job> job = find(id);
  if (!job) return std::nullopt;
  RedoLogStatus status = job->status;
  status.queued = job->queue.size() + job->in_hand.size();
  return status;
}

bool RedoLogsSim::idle(JobId id) const {
  const std::shared_ptr<Job> job = find(id);
  return !job || (!job->busy && job->queue.empty());
}

bool RedoLogsSim::whole(JobId id) const {
  const std::shared_ptr<Job> job = find(id);
  return job && job->status.error.empty() && job->status.dropped == 0 && !job->anew;
}

Status RedoLogsSim::replay(JobId id, Round after, Round to, const RedoLog::Each& each) {
  const std::shared_ptr<Job> job = find(id);
  if (!job) return fail(ErrorCode::kUnavailable, "this server has no redo log of the job");
  if (to <= after) return {};
  const auto& records = disk_log(*job).records;
  ValidSteps<std::size_t> valid;
  for (std::size_t at = 0; at < records.size(); ++at) {
    if (records[at].cut) {
      valid.cut(*records[at].cut);
    } else {
      valid.note(records[at].step.chunk, records[at].step.version, at);
    }
  }
  std::vector<std::size_t> wanted;
  if (valid.between(after, to, wanted) || valid.chunks() < job->plan.chunks) {
    return fail(ErrorCode::kUnavailable, "the redo log lacks steps");
  }
  std::ranges::sort(wanted);
  for (const std::size_t at : wanted) {
    std::vector<float> sum = records[at].sum;
    if (records[at].lost || records[at].torn) std::fill(sum.begin() + sum.size() / 2, sum.end(), 0.0f);
    if (Status taken = each(records[at].step, sum); !taken) return taken;
  }
  return {};
}

// ---- Writing ----

// What there is to do next, as RedoLogs::next_job() and write_some() have it.
void RedoLogsSim::work(Job& job) {
  if (job.busy) return;
  const std::shared_ptr<Job> self = find(job.plan.job);
  const std::uint64_t now = owner_.now_ns();
  if (!job.queue.empty() && now >= job.retry_ns) {
    const std::size_t count = std::min(job.queue.size(), RedoLog::kMaxBatch);
    for (std::size_t i = 0; i < count; ++i) job.in_hand.push_back(job.queue.take());
    job.busy = true;
    job.batch = count;
    job.written = false;
    return later(self, options_.step_ns / job.batch, &RedoLogsSim::write_next);
  }
  std::uint64_t wake_ns = job.queue.empty() ? ~0ull : job.retry_ns;
  if (job.dirty && now >= job.synced_ns + RedoLogs::kSyncNs) {
    job.busy = true;
    return later(self, options_.step_ns, &RedoLogsSim::sync);
  }
  if (job.dirty) wake_ns = std::min(wake_ns, job.synced_ns + RedoLogs::kSyncNs);
  if (wake_ns == ~0ull || (job.wake_ns > now && job.wake_ns <= wake_ns)) return;
  job.wake_ns = wake_ns;
  later(self, wake_ns - now, &RedoLogsSim::work);
}

// For what is void there is always room, but on a full disk.
Status RedoLogsSim::begin_file(Job& job, bool cut) {
  Disk::Log& log = disk_log(job);
  const std::uint64_t bound = std::uint64_t{options_.bound_rounds} * job.plan.chunks + 2ull * options_.file_records;
  const bool fits = options_.bound_rounds == 0 || log.records.size() + options_.file_records <= bound;
  if (!fits && options_.at_bound) options_.at_bound();
  if (!fits && !cut) return fail(ErrorCode::kLimit, "the log has all the space that it may have");
  if (disk_.full) return fail(ErrorCode::kIo, "the disk is full");
  // Nothing may follow what is not durable.
  log.sync();
  job.file = log.records.empty() ? 1 : log.records.back().file + 1;
  job.room = fits ? options_.file_records : 1;
  return {};
}

Status RedoLogsSim::write(Job& job, RedoQueue::Item& item) {
  Disk::Log& log = disk_log(job);
  if (!job.file || job.room == 0) {
    if (Status begun = begin_file(job, item.cut.has_value()); !begun) return begun;
  }
  --job.room;
  log.chunks = job.plan.chunks;
  Disk::LogRecord& record = log.records.emplace_back();
  record.file = *job.file;
  if (item.cut) {
    record.cut = item.cut;
    job.queue.cut_written();
    job.index.cut(*item.cut);
    log.sync();
    return {};
  }
  const float* sum = redo_sum_in(item.step.block);
  record.sum.assign(sum, sum + item.step.elements);
  item.step.block.reset();
  record.step = std::move(item.step);
  job.index.note(record.step.chunk, record.step.version);
  job.status.written += redo_record_bytes(record.sum.size());
  job.dirty = true;
  return {};
}

void RedoLogsSim::write_next(Job& job) {
  while (!job.in_hand.empty() && job.in_hand.front().flushed) {
    job.flushed.push_back(std::move(job.in_hand.front().flushed));
    job.in_hand.pop_front();
  }
  if (job.in_hand.empty()) return end_batch(job, {});
  if (const Status written = write(job, job.in_hand.front()); !written) return end_batch(job, written);
  job.written = true;
  job.in_hand.pop_front();
  later(find(job.plan.job), options_.step_ns / job.batch, &RedoLogsSim::write_next);
}

void RedoLogsSim::end_batch(Job& job, const Status& status) {
  const std::shared_ptr<Job> self = find(job.plan.job);  // calls may drop the job
  if (status && job.dirty && owner_.now_ns() >= job.synced_ns + RedoLogs::kSyncNs) {
    disk_log(job).sync();
    job.dirty = false;
    job.synced_ns = owner_.now_ns();
  }
  job.status.range = job.index.range();
  job.busy = false;
  give_back(job);
  if (!status) {
    failed(job, status.error());
  } else if (job.written) {
    job.status.error.clear();
  }
  for (const auto& call : std::exchange(job.flushed, {})) call();
  if (find(self->plan.job) == self) work(job);
}

void RedoLogsSim::sync(Job& job) {
  disk_log(job).sync();
  job.dirty = job.busy = false;
  job.synced_ns = owner_.now_ns();
  work(job);
}

// As RedoLogs::failed().
void RedoLogsSim::failed(Job& job, const Error& error) {
  job.status.error = error.message;
  job.retry_ns = owner_.now_ns() + RedoLogs::kRetryNs;
  std::vector<RedoQueue::Item> dropped;
  std::ranges::move(job.queue.hold(job.plan.waits && options_.holds, dropped), std::back_inserter(job.flushed));
  job.status.dropped += dropped.size();
}

}  // namespace tributary::sim
