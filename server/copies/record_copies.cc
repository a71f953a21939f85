#include "server/copies/record_copies.h"

#include <memory>
#include <utility>

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {

RecordCopies::RecordCopies(Store* store, Logger logger, Send send)
    : store_(store), logger_(std::move(logger)), send_(std::move(send)) {
  list();
}

void RecordCopies::registry_is_here(bool here) {
  if (here == here_) return;
  here_ = here;
  held_.clear();
  if (!here) list();
}

void RecordCopies::list() {
  if (!store_) return;
  const Status listed = store_->each([&](const Result<JobRecord>& record) {
    if (record) {
      held_[record->job] = record->edition;
    } else {
      logger_->error("a copy of a job's record is of no use: {}", record.error().message);
    }
  });
  if (!listed) logger_->error("copies of job records cannot be listed: {}", listed.error().message);
}

std::vector<HeldRecord> RecordCopies::held() const {
  std::vector<HeldRecord> held;
  for (const auto& [job, edition] : held_) {
    if (held.size() < kMaxJobs) held.push_back({job, edition});
  }
  return held;
}

void RecordCopies::save(const JobRecordCopy& copy) {
  if (!store_ || !orders_ || here_) return;
  Result<JobRecord> record = records::record_in(
      copy, "the coordinator's record of job id " + std::to_string(copy.job.value) + ", which it sent,");
  if (!record) return logger_->error("{}", record.error().message);
  const HeldRecord held{record->job, record->edition};
  if (const auto newer = held_.find(held.job); newer != held_.end() && newer->second > held.edition) {
    return send_(HeldRecord{held.job, newer->second});
  }
  saving_.insert(held.job);
  // The coordinator that this process had may have written a newer one.
  const auto write = [store = store_, record = std::move(*record)]() -> Status {
    const Result<JobRecord> there = store->record(record.job);
    return there && there->edition > record.edition ? Status() : store->save(record);
  };
  orders_->run(write, [this, held](const Status& saved) { ended(held, saved); });
}

void RecordCopies::ended(const HeldRecord& held, const Status& saved) {
  saving_.erase(saving_.find(held.job));
  if (saved && !here_) {
    held_[held.job] = held.edition;
    send_(held);
  } else if (!saved && !failing_) {
    logger_->error("cannot keep a copy of the record of job id {}: {}; the coordinator's server has it", held.job.value,
                   saved.error().message);
  }
  failing_ = !saved;
  if (saving(held.job)) return;
  std::vector<std::function<void()>> waited;
  for (auto [at, end] = after_.equal_range(held.job); at != end; at = after_.erase(at)) {
    waited.push_back(std::move(at->second));
  }
  for (const auto& what : waited) what();
}

void RecordCopies::after(JobId job, std::function<void()> what) {
  if (!saving(job)) return what();
  after_.emplace(job, std::move(what));
}

void RecordCopies::answer(const WantRecord& question) {
  const auto found = std::make_shared<JobRecordCopy>(JobRecordCopy{question.job, {}});
  if (!store_ || !orders_) return send_(std::move(*found));
  const auto read = [store = store_, found]() -> Status {
    const Result<JobRecord> record = store->record(found->job);
    if (!record) return tl::unexpected(record.error());
    *found = records::copy_of(*record);
    if (found->record.size() > kMaxRecordCopy) found->record.clear();  // a message does not take it
    return {};
  };
  orders_->run(read, [this, found](const Status& status) {
    if (!status) logger_->error("cannot give the coordinator a record back: {}", status.error().message);
    send_(std::move(*found));
  });
}

void RecordCopies::forget(JobId job) {
  if (!store_ || !orders_ || held_.erase(job) == 0) return;
  orders_->run([store = store_, job] { return store->remove(job); },
               [this, job](const Status& removed) {
                 if (removed) return;
                 logger_->warn("the copy of the record of job id {} stays: {}", job.value, removed.error().message);
               });
}

}  // namespace tributary
