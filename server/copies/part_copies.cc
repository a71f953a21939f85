#include "server/copies/part_copies.h"

#include <algorithm>

namespace tributary {

PartCopies::PartCopies(LargePartStore* store, Logger logger, Send send, Now now_ms)
    : store_(store), logger_(std::move(logger)), send_(std::move(send)), now_ms_(std::move(now_ms)) {
  if (store_) held_ = store_->complete();
}

void PartCopies::registry_is_here(bool here) {
  if (here == here_) return;
  here_ = here;
  queue_.clear();
  coming_.reset();
  held_ = here || !store_ ? LargePartStore::Complete() : store_->complete();
}

std::vector<HeldParts> PartCopies::held() const {
  std::vector<HeldParts> held;
  for (const auto& [job, parts] : held_) {
    if (!parts.empty() && held.size() < kMaxJobs) held.push_back({job, {parts.begin(), parts.end()}});
  }
  return held;
}

bool PartCopies::has(const Key& key) const {
  const auto of_job = held_.find(key.first);
  return of_job != held_.end() && of_job->second.contains(key.second);
}

void PartCopies::report(JobId job) const {
  if (here_) return;
  const auto found = held_.find(job);
  HeldParts held{job, {}};
  if (found != held_.end()) held.parts.assign(found->second.begin(), found->second.end());
  if (const auto number = numbers_.find(job); number != numbers_.end()) held.number = number->second;
  held.coming = std::ranges::any_of(queue_, [&](const Key& key) { return key.first == job; });
  send_(std::move(held));
}

void PartCopies::on(const CopyParts& m) {
  if (!store_ || !orders_ || here_) return;
  numbers_[m.job] = m.number;
  keep_only(m.job, {m.parts.begin(), m.parts.end()});
  const std::set<Key> queued(queue_.begin(), queue_.end());
  for (const LargePart& large : m.parts) {
    if (const Key key{m.job, large}; !has(key) && !queued.contains(key)) queue_.push_back(key);
  }
  report(m.job);
  begin_next();
}

void PartCopies::keep_only(JobId job, const std::set<LargePart>& wanted) {
  if (!store_ || !orders_ || here_) return;
  const auto goes = [&](const Key& key) { return key.first == job && !wanted.contains(key.second); };
  const bool begun = coming_ && goes(queue_.front());
  if (begun) coming_.reset();
  std::erase_if(queue_, goes);
  bool fewer = false;
  if (const auto held = held_.find(job); held != held_.end()) {
    fewer = std::erase_if(held->second, [&](const LargePart& large) { return !wanted.contains(large); }) > 0;
    if (held->second.empty()) held_.erase(held);
  }
  if (begun || fewer) drop_others(job);
  begin_next();
}

// Drops what the store has of the job and nobody wants.
void PartCopies::drop_others(JobId job) {
  std::set<LargePart> stay;
  if (const auto held = held_.find(job); held != held_.end()) stay = held->second;
  for (const Key& key : queue_) {
    if (key.first == job) stay.insert(key.second);
  }
  orders_->run([store = store_, job, stay] { return store->drop(job, stay); },
               [this, job](const Status& status) {
                 if (status) return;
                 logger_->warn("copies of large parts of job id {} cannot be dropped: {}", job.value,
                               status.error().message);
                 LargePartStore::Complete there = store_->complete();  // some may have gone
                 held_[job] = std::move(there[job]);
                 if (held_[job].empty()) held_.erase(job);
                 report(job);
               });
}

void PartCopies::begin_next() {
  if (coming_ || queue_.empty()) return;
  const auto disk = [this](StoredFetch::Work work, StoredFetch::Worked worked) {
    orders_->run(std::move(work), [this, worked = std::move(worked)](const Status& done) { worked(done, now_ms_()); });
  };
  coming_ = std::make_unique<StoredFetch>(
      *store_, queue_.front().first, queue_.front().second,
      StoredFetch::Ports{disk, send_,
                         [this](StoredFetch::End end, const Status& status, std::uint64_t) { ended(end, status); }},
      now_ms_());
  coming_->begin(now_ms_());
}

void PartCopies::ended(StoredFetch::End end, const Status& status) {
  const Key key = queue_.front();
  const bool complete = end == StoredFetch::End::kComplete;
  if (complete) held_[key.first].insert(key.second);
  if (!complete && !failing_) {
    logger_->error(
        "cannot keep a copy of a large part of what ranks of job id {} keep: {}; the coordinator's server has it",
        key.first.value, status ? "what came has another checksum" : status.error().message);
  }
  failing_ = !complete;
  leave(complete);
}

// A part that cannot be had is not requested again before the coordinator repeats its order.
void PartCopies::leave(bool success) {
  const JobId job = queue_.front().first;
  queue_.pop_front();
  coming_.reset();
  if (!success) drop_others(job);  // what came of it
  if (std::ranges::find(queue_, job, &Key::first) == queue_.end()) report(job);
  begin_next();
}

void PartCopies::on(const StatePart& m) {
  if (!coming_ || queue_.front() != Key(m.part.job, m.part.large)) return;
  if (m.comes) return coming_->comes(now_ms_());
  if (m.data.empty()) return leave(false);  // nobody has it any more
  coming_->take(m, now_ms_());
}

void PartCopies::on(const WantPart& m) {
  if (!orders_ || !has({m.job, m.large})) {
    send_(StatePart{m, {}});
    return report(m.job);
  }
  const std::tuple piece{m.job, m.large, m.offset};
  if (reading_.size() >= kReads || !reading_.insert(piece).second) return;
  const auto data = std::make_shared<std::vector<std::byte>>();
  const auto read = [store = store_, m, data]() -> Status {
    Result<std::vector<std::byte>> bytes = store->read(m.job, m.large, m.offset);
    if (!bytes) return tl::unexpected(bytes.error());
    *data = std::move(*bytes);
    return {};
  };
  orders_->run(read, [this, m, piece, data](const Status& done) {
    reading_.erase(piece);
    if (!done && done.error().code == ErrorCode::kLimit) return;  // too much waits: the asker asks again
    if (!done)
      logger_->error("a copy of a large part of job id {} cannot be read: {}", m.job.value, done.error().message);
    send_(StatePart{m, std::move(*data)});
  });
}

void PartCopies::tick() {
  if (coming_ && coming_->tick(now_ms_())) leave(false);
}

}  // namespace tributary
