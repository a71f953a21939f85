#include "server/record_copies.h"

#include <memory>
#include <span>
#include <utility>

#include "server/coordinator/cluster/job_record_seal.h"

namespace tributary {

RecordCopies::RecordCopies(Store* store, Logger logger) : store_(store), logger_(std::move(logger)) {
  if (!store_) return;
  const auto first = store_->next_record({});
  any_ = !first || first->has_value();
}

void RecordCopies::save(const JobRecordCopy& copy, std::function<void()> ended) {
  if (!orders_) return;
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  Result<JobRecord> record = records::unseal_job(
      bytes, "the coordinator's record of job id " + std::to_string(copy.job.value) + ", which it sent,");
  if (!record) return logger_->error("{}", record.error().message);
  any_ = true;
  saving_.insert(copy.job);
  const auto done = [this, job = copy.job, ended = std::move(ended)](const Status& saved) {
    saving_.erase(saving_.find(job));
    if (!saved && !failing_) {
      logger_->error("cannot keep a copy of the record of job id {}: {}; server 0's store has it", job.value,
                     saved.error().message);
    }
    failing_ = !saved;
    ended();
  };
  orders_->run([store = store_, record = std::move(*record)] { return store->save(record); }, done);
}

void RecordCopies::answer(const WantRecord& question, std::function<void(JobRecordCopy)> reply) {
  if (!orders_) return reply({});
  const auto found = std::make_shared<JobRecordCopy>();
  const auto read = [store = store_, after = question.after, found]() -> Status {
    const auto record = store->next_record(after);
    if (!record) return tl::unexpected(record.error());
    if (!*record) return {};
    const std::string sealed = records::seal(**record);
    const auto bytes = std::as_bytes(std::span(sealed));
    *found = {(*record)->job, {bytes.begin(), bytes.end()}};
    return {};
  };
  orders_->run(read, [this, found, reply = std::move(reply)](const Status& status) {
    if (!status) logger_->error("cannot give the coordinator its records back: {}", status.error().message);
    reply(std::move(*found));
  });
}

void RecordCopies::forget(JobId job) {
  if (!orders_ || job.value == 0) return;
  orders_->run([store = store_, job] { return store->remove(job); },
               [this, job](const Status& removed) {
                 if (!removed)
                   logger_->warn("the copy of the record of job id {} stays: {}", job.value, removed.error().message);
               });
}

}  // namespace tributary
