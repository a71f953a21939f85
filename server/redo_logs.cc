#include "server/redo_logs.h"

#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/clock.h"
#include "common/daemon_thread.h"
#include "common/printed.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& base, JobId job) {
  return base + "/" + printed("%016llx", static_cast<unsigned long long>(job.value));
}

}  // namespace

Result<std::unique_ptr<RedoLogs>> RedoLogs::open(std::string folder, const std::vector<JobId>& jobs, Log log) {
  std::unique_ptr<RedoLogs> logs(new RedoLogs(std::move(folder), std::move(log)));
  std::error_code failed;
  fs::directory_iterator listing(logs->folder_, failed);
  if (failed && failed != std::errc::no_such_file_or_directory) {
    return fail(ErrorCode::kIo, "cannot read the redo logs in " + logs->folder_ + ": " + failed.message());
  }
  if (failed) listing = {};
  for (const auto& entry : listing) {
    const std::string name = entry.path().filename().string();
    JobId job;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), job.value, 16);
    const bool known =
        error == std::errc() && end == name.data() + name.size() && std::ranges::find(jobs, job) != jobs.end();
    if (!known) {  // without a snapshot it is of no use
      fs::remove_all(entry.path(), failed);
      continue;
    }
    auto opened = logs->open_log(job);
    if (!opened) return tl::unexpected(opened.error());
    auto made = std::make_shared<Job>();
    made->plan.job = job;
    made->log = std::move(*opened);
    logs->publish(*made);
    logs->jobs_.emplace(job, std::move(made));
  }
  logs->thread_ = start_thread("redo logs", logs->log_, [&self = *logs] { self.run(); });
  return logs;
}

Result<std::unique_ptr<RedoLog>> RedoLogs::open_log(JobId id) const {
  auto log = RedoLog::open(folder_of(folder_, id), id);
  if (log && !(*log)->damage().empty()) {
    log_("the redo log of job " + std::to_string(id.value) + " ends before " + (*log)->damage() +
         "; what came after was not durable, and is removed");
  }
  return log;
}

RedoLogs::~RedoLogs() {
  stop();
}

void RedoLogs::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [id, job] : jobs_) job->retry_ns = 0;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  std::map<JobId, std::shared_ptr<Job>> jobs;  // with the blocks that could not be written
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(jobs_);
  }
  for (auto& [id, job] : jobs) {
    for (const auto& call : job->queue.clear()) call();
  }
}

std::shared_ptr<RedoLogs::Job> RedoLogs::find(JobId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second;
}

void RedoLogs::publish(Job& job) const {
  if (!job.log) return;
  job.status.range = job.log->range();
  job.status.bytes = job.log->bytes();
  job.status.bound_bytes = job.plan.limits.bound_bytes;
  job.dirty = !job.log->synced();
}

void RedoLogs::begin(const Plan& plan, std::optional<Round> after) {
  std::shared_ptr<Job> job = find(plan.job);
  if (!job) job = std::make_shared<Job>();
  std::string unopened;
  {
    const std::lock_guard disk(job->disk);
    {
      const std::lock_guard lock(mutex_);
      job->plan = plan;
    }
    if (const Status opened = reopen(*job); !opened) unopened = opened.error().message;
  }
  if (!unopened.empty()) log_(cannot_write(*job, unopened));
  const std::lock_guard lock(mutex_);
  job->begun = true;
  job->status.bound_bytes = plan.limits.bound_bytes;
  if (!unopened.empty()) {  // the thread tries it again, as whatever it cannot write
    job->status.error = unopened;
    job->failed_ns = job->told_ns = steady_ns();
    job->retry_ns = job->failed_ns + kRetryNs;
  }
  if (after) job->queue.cut(Version(after->value));
  jobs_[plan.job] = std::move(job);
  wake_.notify_all();
}

// REQUIRES: job.disk held.
Status RedoLogs::reopen(Job& job) const {
  if (!job.log) {
    auto log = open_log(job.plan.job);
    if (!log) return tl::unexpected(log.error());
    job.log = std::move(*log);
  }
  job.log->set_limits(job.plan.limits);
  job.log->set_chunks(job.plan.chunks);
  return {};
}

std::string RedoLogs::cannot_write(const Job& job, const std::string& why) const {
  return "the redo log of job '" + job.plan.name + "' cannot be written: " + why +
         (job.plan.waits ? "; training waits until it can be (recovery.when_full = \"wait\")"
                         : "; training goes on, and what is not logged would be computed again after a loss "
                           "(recovery.when_full = \"go_on\")") +
         "; free space, or raise recovery.log_mb";
}

void RedoLogs::drop(JobId id) {
  std::shared_ptr<Job> job;
  RedoQueue::Calls flushed;
  {
    const std::lock_guard lock(mutex_);
    auto found = jobs_.extract(id);
    if (found.empty()) return;
    job = std::move(found.mapped());
    job->begun = false;
    flushed = job->queue.clear();
  }
  {
    const std::lock_guard disk(job->disk);
    job->gone = true;
    if (job->log) job->log->remove();
  }
  for (const auto& call : flushed) call();
}

void RedoLogs::append(LoggedStep step) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(step.job);
  if (found == jobs_.end() || !found->second->begun) return;
  Job& job = *found->second;
  if (!job.plan.waits && !job.status.error.empty() && steady_ns() < job.retry_ns) {
    ++job.status.dropped;
    return;
  }
  const bool idle = job.queue.empty();
  job.queue.append(std::move(step));
  if (idle) wake_.notify_all();
}

void RedoLogs::trim(JobId id, Round round) {
  const std::shared_ptr<Job> job = find(id);
  if (!job) return;
  const std::lock_guard disk(job->disk);
  if (job->log) job->log->trim(round);
  const std::lock_guard lock(mutex_);
  publish(*job);
  job->retry_ns = 0;
  wake_.notify_all();
}

void RedoLogs::flush(JobId id, std::function<void()> done) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(id);
    const bool writes = found != jobs_.end() && !stopping_ && found->second->status.error.empty();
    if (writes && (found->second->busy || !found->second->queue.empty())) {
      found->second->queue.when_flushed(std::move(done));
      wake_.notify_all();
      return;
    }
  }
  done();
}

LoggedRounds RedoLogs::range(JobId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? LoggedRounds{} : found->second->queue.valid(found->second->status.range);
}

std::optional<RedoLogStatus> RedoLogs::status(JobId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return std::nullopt;
  RedoLogStatus status = found->second->status;
  status.queued = found->second->queue.size();
  return status;
}

Status RedoLogs::replay(JobId id, Round after, Round to, const RedoLog::Each& each) {
  const std::shared_ptr<Job> job = find(id);
  if (!job) {
    return fail(ErrorCode::kUnavailable,
                "this server has no redo log of job " + std::to_string(id.value) + " (any more); attach again");
  }
  const std::lock_guard disk(job->disk);
  if (const Status opened = reopen(*job); !opened) return opened;
  Status status = job->log->replay(after, to, each);
  const std::lock_guard lock(mutex_);
  publish(*job);
  return status;
}

// Whose turn it is; none: when there will be something to do. REQUIRES: mutex_ held.
std::shared_ptr<RedoLogs::Job> RedoLogs::next_job(std::uint64_t now, std::uint64_t& wake_ns) const {
  auto at = jobs_.upper_bound(served_);
  for (std::size_t i = 0; i < jobs_.size(); ++i, ++at) {
    if (at == jobs_.end()) at = jobs_.begin();
    const Job& job = *at->second;
    if (!job.queue.empty()) {
      if (now >= job.retry_ns) return at->second;
      wake_ns = std::min(wake_ns, job.retry_ns);
    }
    if (!job.dirty) continue;
    if (now >= job.synced_ns + kSyncNs || stopping_) return at->second;
    wake_ns = std::min(wake_ns, job.synced_ns + kSyncNs);
  }
  return nullptr;
}

void RedoLogs::run() {
  pthread_setname_np(pthread_self(), "redo log");
  std::unique_lock lock(mutex_);
  while (true) {
    const std::uint64_t now = steady_ns();
    std::uint64_t wake_ns = ~0ull;
    if (const std::shared_ptr<Job> next = next_job(now, wake_ns)) {
      served_ = next->plan.job;
      write_some(*next, lock);
      continue;
    }
    if (stopping_) return;
    if (wake_ns == ~0ull) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::nanoseconds(wake_ns - now));
    }
  }
}

// Writes what is queued of a job, or syncs what was written. REQUIRES: lock held; it is given up meanwhile.
void RedoLogs::write_some(Job& job, std::unique_lock<std::mutex>& lock) {
  std::vector<RedoQueue::Item> items;
  const std::size_t count = job.retry_ns > steady_ns() ? 0 : std::min(job.queue.size(), RedoLog::kMaxBatch);
  std::uint64_t in_hand = 0;
  while (items.size() < count && in_hand < kBatchBytes) {
    in_hand += redo_record_bytes(job.queue.front().step.elements);
    items.push_back(job.queue.take());
  }
  const bool sync = job.dirty && (items.empty() || steady_ns() >= job.synced_ns + kSyncNs);
  job.busy = true;
  lock.unlock();
  std::size_t done = 0, cuts = 0;
  std::uint64_t bytes = 0;
  Status status;
  RedoQueue::Calls flushed;
  std::unique_lock disk(job.disk);
  if (job.gone) {
    for (RedoQueue::Item& item : items) {
      if (item.flushed) flushed.push_back(std::move(item.flushed));
    }
    items.clear();
  } else if (!items.empty() && !job.log) {
    status = reopen(job);
  }
  while (done < items.size() && status) {
    RedoQueue::Item& item = items[done];
    if (item.flushed) {
      flushed.push_back(std::move(item.flushed));
      ++done;
      continue;
    }
    if (item.cut) {
      status = job.log->cut(*item.cut);
      if (!status) break;
      ++done;
      ++cuts;
      continue;
    }
    std::vector<LoggedStep> steps;
    for (std::size_t i = done; i < items.size() && items[i].step.block; ++i) steps.push_back(items[i].step);
    const Result<std::size_t> appended = job.log->append(steps);
    if (!appended) {
      status = tl::unexpected<Error>(appended.error());
      break;
    }
    for (std::size_t i = done; i < done + *appended; ++i) {
      bytes += redo_record_bytes(items[i].step.elements);
      items[i].step.block.reset();
    }
    done += *appended;
  }
  if (status && sync && !job.gone && job.log) status = job.log->sync();
  lock.lock();
  publish(job);
  disk.unlock();
  job.busy = false;
  if (sync) job.synced_ns = steady_ns();
  if (stopping_ && !status) job.dirty = false;
  job.status.written += bytes;
  const bool written = bytes != 0 || cuts != 0;
  for (; cuts > 0; --cuts) job.queue.cut_written();
  for (std::size_t i = items.size(); i > done; --i) job.queue.put_back(std::move(items[i - 1]));
  std::string again;
  if (!status) {
    failed(job, status.error(), lock);
  } else if (!job.status.error.empty() && written) {
    again = printed("the redo log of job '%s' is written again, after %.1f s", job.plan.name.c_str(),
                    static_cast<double>(steady_ns() - job.failed_ns) * 1e-9);
    job.status.error.clear();
  }
  if (flushed.empty() && again.empty()) return;
  lock.unlock();
  if (!again.empty()) log_(again);
  for (const auto& call : flushed) call();
  lock.lock();
}

// What is queued waits, or is dropped; who waits for a flush is told that there is nothing to wait for.
void RedoLogs::failed(Job& job, const Error& error, std::unique_lock<std::mutex>& lock) {
  const std::uint64_t now = steady_ns();
  if (job.status.error.empty()) job.failed_ns = now;
  job.status.error = error.message;
  job.retry_ns = now + kRetryNs;
  std::vector<RedoQueue::Item> dropped;
  const RedoQueue::Calls flushed = job.queue.hold(job.plan.waits && !stopping_, dropped);
  if (stopping_) job.queue.clear();
  job.status.dropped += dropped.size();
  const bool tell = now >= job.told_ns + kTellNs || job.told_ns == 0;
  if (tell) job.told_ns = now;
  const std::string line = cannot_write(job, error.message);
  lock.unlock();
  dropped.clear();
  if (tell) log_(line);
  for (const auto& call : flushed) call();
  lock.lock();
}

}  // namespace tributary
