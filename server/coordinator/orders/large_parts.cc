#include "server/coordinator/orders/large_parts.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace tributary {

LargeParts::LargeParts(CoordinatorOutput& output, const Peers& peers, Told told)
    : output_(output),
      peers_(peers),
      told_(std::move(told)),
      store_(output.large_parts()),
      holders_({store_ != nullptr, [this](JobId job, const LargePart& large) { return has(job, large); },
                [this](std::uint64_t server) { return peers_.peer(server).has_value(); },
                [this](std::uint64_t server, CopyParts m) { send(server, std::move(m)); }}) {
  if (store_) complete_ = store_->complete();
}

bool LargeParts::has(JobId job, const LargePart& large) const {
  const auto of_job = complete_.find(job);
  return of_job != complete_.end() && of_job->second.contains(large);
}

bool LargeParts::to_be_had(JobId job, const LargePart& large) const {
  if (stored(job, large)) return true;
  const auto fetch = fetches_.find({job, large});
  if (fetch != fetches_.end() && fetch->second.parts->all_taken()) return true;
  const auto announced = announced_.find({job, large});
  return announced != announced_.end() &&
         std::ranges::any_of(announced->second.workers, [&](std::uint64_t w) { return peers_.worker(w) != nullptr; });
}

std::vector<JobId> LargeParts::jobs() const {
  std::vector<JobId> jobs;
  for (const auto& [job, parts] : complete_) jobs.push_back(job);
  return jobs;
}

bool LargeParts::needs(std::uint64_t daemon) const {
  const auto announced_by = [&](const Key& key) {
    const auto announced = announced_.find(key);
    return announced != announced_.end() &&
           std::ranges::find(announced->second.workers, daemon) != announced->second.workers.end();
  };
  const auto lacks_some = [&](const auto& entry) {
    return entry.second.source == daemon && !entry.second.parts->all_taken();
  };
  return std::ranges::any_of(fetches_, lacks_some) || std::ranges::any_of(queue_, announced_by) ||
         holders_.copies(daemon);
}

void LargeParts::restored(JobId job) {
  LargePartStore::Complete there = store_ ? store_->complete() : LargePartStore::Complete();
  if (const auto of_job = there.find(job); of_job != there.end()) complete_.insert(there.extract(of_job));
}

std::string LargeParts::in_words(const Key& key) const {
  const auto announced = announced_.find(key);
  return "a large part of what ranks of " +
         (announced == announced_.end() ? "job id " + std::to_string(key.first.value) : announced->second.job) +
         " keep (" + key.second.in_words() + ")";
}

void LargeParts::send(std::uint64_t daemon, const ControlMessage& message) const {
  if (const auto to = peers_.peer(daemon)) output_.send(*to, message);
}

void LargeParts::announce(JobId job, const std::string& job_in_words, const LargePart& large, std::uint64_t worker) {
  const Key key{job, large};
  if (!announced_.contains(key) && announced_.size() >= kAnnounced) {
    if (!std::exchange(full_, true)) {
      output_.log("workers have more than " + std::to_string(kAnnounced) +
                      " large parts of what ranks keep: the newest are left out of snapshots",
                  LogLevel::kWarning);
    }
    return;
  }
  Announced& announced = announced_[key];
  announced.job = job_in_words;
  if (std::ranges::find(announced.workers, worker) == announced.workers.end()) announced.workers.push_back(worker);
}

bool LargeParts::want(JobId job, const LargePart& large, std::uint64_t now_ms) {
  const Key key{job, large};
  if (has(job, large)) return true;
  if (!store_ || !to_be_had(job, large)) return false;
  if (fetches_.contains(key) || std::ranges::find(queue_, key) != queue_.end()) return true;
  if (queue_.size() >= kQueued) {
    if (!std::exchange(full_, true)) {
      output_.log("more than " + std::to_string(kQueued) + " large parts wait to be fetched: others are left out",
                  LogLevel::kWarning);
    }
    return false;
  }
  queue_.push_back(key);
  begin_next(now_ms);
  return fetches_.contains(key) || std::ranges::find(queue_, key) != queue_.end();
}

void LargeParts::begin_next(std::uint64_t now_ms) {
  while (fetches_.size() < kFetches && !queue_.empty()) {
    const Key key = queue_.front();
    queue_.pop_front();
    begin_fetch(key, now_ms);
  }
}

void LargeParts::begin_fetch(const Key& key, std::uint64_t now_ms) {
  std::vector<std::uint64_t> sources;
  if (const auto announced = announced_.find(key); announced != announced_.end()) {
    std::vector<std::uint64_t>& workers = announced->second.workers;
    std::erase_if(workers, [&](std::uint64_t worker) { return !peers_.worker(worker); });
    sources = workers;
    if (workers.empty()) announced_.erase(announced);
  }
  std::ranges::copy(holders_.sources(key), std::back_inserter(sources));
  if (sources.empty()) return;
  const std::uint64_t source = sources.front();
  const auto ended = [this, key](StoredFetch::End end, const Status& status, std::uint64_t now) {
    fetched(key, end, status, now);
  };
  const StoredFetch::Ports ports{[this](StoredFetch::Work work, StoredFetch::Worked worked) {
                                   output_.on_disk(std::move(work), std::move(worked));
                                 },
                                 [this, source](const WantPart& want) { send(source, want); }, ended};
  auto parts = std::make_unique<StoredFetch>(*store_, key.first, key.second, ports, now_ms);
  fetches_.emplace(key, Fetch{std::move(parts), source}).first->second.parts->begin(now_ms);
}

void LargeParts::fetched(const Key& key, StoredFetch::End end, const Status& status, std::uint64_t now_ms) {
  const auto at = fetches_.find(key);
  if (end == StoredFetch::End::kWrongChecksum) return lost(at, "what came has another checksum", now_ms);
  if (end == StoredFetch::End::kStoreFailed) {
    leave_out(key, status.error(), now_ms);
    return begin_next(now_ms);
  }
  complete_[key.first].insert(key.second);
  fetches_.erase(at);
  begin_next(now_ms);
  told_(key.first, now_ms);
}

void LargeParts::leave_out(const Key& key, const Error& error, std::uint64_t now_ms) {
  holders_.failed(key, {}, now_ms);
  output_.log(in_words(key) + " is left out of snapshots: " + error.message, LogLevel::kError);
  fetches_.erase(key);
  announced_.erase(key);  // until a worker announces it again
}

void LargeParts::forget_source(const Key& key, std::uint64_t source) {
  const auto announced = announced_.find(key);
  if (announced != announced_.end()) std::erase(announced->second.workers, source);
}

void LargeParts::lost(Fetches::iterator at, const std::string& why, std::uint64_t now_ms) {
  const Key key = at->first;
  const std::uint64_t source = at->second.source;
  const std::string what = in_words(key);
  fetches_.erase(at);
  forget_source(key, source);
  if (peers_.peer(source) && !peers_.worker(source)) holders_.failed(key, source, now_ms);
  begin_fetch(key, now_ms);
  if (!fetches_.contains(key)) {
    output_.log(what + " did not come from " + peers_.daemon_in_words(source) + ", and nobody else has it: " + why,
                LogLevel::kWarning);
  }
  begin_next(now_ms);
}

void LargeParts::take(std::uint64_t source, const StatePart& m, std::uint64_t now_ms) {
  const Key key{m.part.job, m.part.large};
  if (m.comes) return;  // a worker that waits for the part itself is no source
  pass_on(source, m);
  const auto at = fetches_.find(key);
  if (at == fetches_.end() || at->second.source != source) return;  // of a fetch that is over
  if (m.data.empty()) return lost(at, "it has it no more", now_ms);
  taken_ += at->second.parts->take(m, now_ms);
}

void LargeParts::answer(std::uint64_t daemon, const WantPart& m, std::uint64_t now_ms) {
  const Key key{m.job, m.large};
  holders_.requests(daemon, m.job, now_ms);
  if (has(m.job, m.large)) {
    const std::tuple piece{daemon, key, m.offset};
    if (!reading_.insert(piece).second) return send(daemon, StatePart{m, {}, true});
    const auto data = std::make_shared<std::vector<std::byte>>();
    const auto read = [store = store_, m, data]() -> Status {
      Result<std::vector<std::byte>> bytes = store->read(m.job, m.large, m.offset);
      if (!bytes) return tl::unexpected(bytes.error());
      *data = std::move(*bytes);
      return {};
    };
    return output_.on_disk(read, [this, key, piece, daemon, m, data](const Status& done, std::uint64_t) {
      reading_.erase(piece);
      if (!done && done.error().code == ErrorCode::kLimit) return;  // too much waits: the asker asks again
      if (!done && has(m.job, m.large)) {
        output_.log(in_words(key) + " cannot be read, and counts as lost: " + done.error().message, LogLevel::kError);
        complete_[m.job].erase(m.large);
      }
      send(daemon, StatePart{m, std::move(*data)});
    });
  }
  if (!to_be_had(m.job, m.large)) return send(daemon, StatePart{m, {}});
  if (!store_) return ask_for_another(m, daemon, now_ms);
  const bool comes = want(m.job, m.large, now_ms);
  if (!comes && to_be_had(m.job, m.large)) return;  // too many wait: the asker's patience is the bound
  send(daemon, StatePart{m, {}, comes});
}

// Workers that ask while it is under way wait for the same answer. The asker's patience bounds all of it.
void LargeParts::ask_for_another(const WantPart& m, std::uint64_t asker, std::uint64_t now_ms) {
  const Key key{m.job, m.large};
  const auto announced = announced_.find(key);
  if (announced == announced_.end()) return send(asker, StatePart{m, {}});
  const auto& workers = announced->second.workers;
  const auto from = std::ranges::find_if(workers, [&](std::uint64_t w) { return w != asker && peers_.worker(w); });
  if (from == workers.end()) return send(asker, StatePart{m, {}});
  std::erase_if(passing_, [&](const auto& entry) { return now_ms > entry.second.since_ms + PartFetch::kPatienceMs; });
  if (!passing_.contains({key, m.offset}) && passing_.size() >= kPassedOn) return;
  Passing& passing = passing_[{key, m.offset}];
  const bool asked = passing.from == *from && now_ms < passing.since_ms + PartFetch::kRepeatMs;
  passing.to.insert(asker);
  if (asked) return;
  passing.from = *from;
  passing.since_ms = now_ms;
  send(*from, m);
}

void LargeParts::pass_on(std::uint64_t worker, const StatePart& m) {
  const Key key{m.part.job, m.part.large};
  const auto at = passing_.find({key, m.part.offset});
  if (at == passing_.end() || at->second.from != worker) return;
  const Passing passing = std::move(at->second);
  passing_.erase(at);
  if (m.data.empty()) {
    forget_source(key, worker);
    if (to_be_had(key.first, key.second)) return;  // the others ask again, and another one has it
  }
  taken_ += m.data.size();
  for (const std::uint64_t to : passing.to) send(to, m);
}

void LargeParts::worker_lost(std::uint64_t worker, std::uint64_t now_ms) {
  for (auto& [key, announced] : announced_) std::erase(announced.workers, worker);
  source_lost(worker, "the worker is lost", now_ms);
  std::erase_if(announced_, [](const auto& entry) { return entry.second.workers.empty(); });
}

void LargeParts::server_lost(std::uint64_t server, std::uint64_t now_ms) {
  holders_.lost(server);
  source_lost(server, "the server is lost", now_ms);
}

void LargeParts::source_lost(std::uint64_t source, const char* why, std::uint64_t now_ms) {
  std::vector<Key> broken;
  for (const auto& [key, fetch] : fetches_) {
    if (fetch.source == source && !fetch.parts->all_taken()) broken.push_back(key);
  }
  for (const Key& key : broken) {
    if (const auto at = fetches_.find(key); at != fetches_.end()) lost(at, why, now_ms);
  }
}

void LargeParts::tick(std::uint64_t now_ms) {
  std::vector<Key> silent;
  for (auto& [key, fetch] : fetches_) {
    if (fetch.parts->tick(now_ms)) silent.push_back(key);
  }
  for (const Key& key : silent) {
    const auto at = fetches_.find(key);
    if (at == fetches_.end()) continue;
    lost(at, "nothing of it came for " + std::to_string(PartFetch::kPatienceMs / 1000) + " s", now_ms);
  }
  begin_next(now_ms);
  for (const Key& key : holders_.tick(now_ms)) want(key.first, key.second, now_ms);
}

void LargeParts::forget(JobId job) {
  keep_only(job, {});
  holders_.forget(job);
}

void LargeParts::keep_only(JobId job, const std::set<LargePart>& wanted) {
  holders_.want(job, wanted);
  const auto goes = [&](const Key& key) { return key.first == job && !wanted.contains(key.second); };
  const auto entry_goes = [&](const auto& entry) { return goes(entry.first); };
  std::erase_if(announced_, entry_goes);
  std::erase_if(queue_, goes);
  const bool begun = std::erase_if(fetches_, entry_goes) > 0;
  std::erase_if(passing_, [&](const auto& entry) { return goes(entry.first.first); });
  if (announced_.size() < kAnnounced && queue_.size() < kQueued) full_ = false;
  const auto there = complete_.find(job);
  const bool some = there != complete_.end() &&
                    std::ranges::any_of(there->second, [&](const LargePart& large) { return !wanted.contains(large); });
  if (!store_ || (!some && !begun)) return;
  const std::set<LargePart> before = there == complete_.end() ? std::set<LargePart>() : there->second;
  if (there != complete_.end()) {
    std::erase_if(there->second, [&](const LargePart& large) { return !wanted.contains(large); });
    if (there->second.empty()) complete_.erase(there);
  }
  const auto drop = [store = store_, job, wanted] { return store->drop(job, wanted); };
  output_.on_disk(drop, [this, job, before](const Status& dropped, std::uint64_t) {
    if (dropped) return;
    output_.log("large parts of job id " + std::to_string(job.value) +
                    " that nobody wants any more stay for now: " + dropped.error().message,
                LogLevel::kWarning);
    if (!before.empty()) complete_[job].insert(before.begin(), before.end());
  });
}

}  // namespace tributary
