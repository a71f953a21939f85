#include "server/record_copies.h"

#include <memory>
#include <span>
#include <utility>

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {

RecordCopies::RecordCopies(Store* store, bool registry, Logger logger, Send send)
    : store_(registry ? nullptr : store), logger_(std::move(logger)), send_(std::move(send)) {
  const Result<std::vector<JobId>> jobs = store_ ? store_->recorded() : std::vector<JobId>();
  if (!jobs) {
    logger_->error("copies of job records cannot be listed: {}", jobs.error().message);
    return;
  }
  for (const JobId job : *jobs) {
    const auto record = store_->record(job);
    if (record) {
      held_[job] = record->edition;
    } else {
      logger_->error("a copy of a job's record is of no use: {}", record.error().message);
    }
  }
}

std::vector<HeldRecord> RecordCopies::held() const {
  std::vector<HeldRecord> held;
  for (const auto& [job, edition] : held_) {
    if (held.size() < kMaxJobs) held.push_back({job, edition});
  }
  return held;
}

void RecordCopies::save(const JobRecordCopy& copy, std::function<void()> ended) {
  if (!store_ || !orders_) return;
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  Result<JobRecord> record = records::unseal_job(
      bytes, "the coordinator's record of job id " + std::to_string(copy.job.value) + ", which it sent,");
  if (!record) return logger_->error("{}", record.error().message);
  if (const auto newer = held_.find(copy.job); newer != held_.end() && newer->second > copy.edition) {
    return send_(HeldRecord{copy.job, newer->second});
  }
  saving_.insert(copy.job);
  const HeldRecord held{copy.job, copy.edition};
  const auto done = [this, held, ended = std::move(ended)](const Status& saved) {
    saving_.erase(saving_.find(held.job));
    if (saved) {
      held_[held.job] = held.edition;
      send_(held);
    } else if (!failing_) {
      logger_->error("cannot keep a copy of the record of job id {}: {}; server 0's store has it", held.job.value,
                     saved.error().message);
    }
    failing_ = !saved;
    ended();
  };
  orders_->run([store = store_, record = std::move(*record)] { return store->save(record); }, done);
}

void RecordCopies::answer(const WantRecord& question) {
  const auto found = std::make_shared<JobRecordCopy>(JobRecordCopy{question.job, 0, {}});
  if (!store_ || !orders_) return send_(std::move(*found));
  const auto read = [store = store_, found]() -> Status {
    const Result<JobRecord> record = store->record(found->job);
    if (!record) return tl::unexpected(record.error());
    const std::string sealed = records::seal(*record);
    const auto bytes = std::as_bytes(std::span(sealed));
    found->edition = record->edition;
    found->record.assign(bytes.begin(), bytes.end());
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
