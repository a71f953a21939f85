#include "server/coordinator/orders/checkpoints.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "common/base/printed.h"
#include "common/math/encoding.h"

namespace tributary {
namespace {

// A save that waits this long for its snapshot (nobody trains, or no snapshot succeeds) is given up, but not while one
// is being taken; and any, when no server that it waits for has moved a byte for so long.
constexpr std::uint64_t kWaitingPatienceMs = 600'000;
constexpr std::uint64_t kWorkingPatienceMs = 600'000;

std::string partial_of(const CheckpointStatus& status) {
  return status.path + kPartialSuffix;
}

// A state is of no use without its large part. Returns the left out states in words.
std::string leave_out_lost(RankStates& states, const std::function<bool(const LargePart&)>& has) {
  const std::size_t all = states.size();
  std::erase_if(states, [&](const auto& entry) {
    const LargePart large = StateHead::of(entry.second).large;
    return large && !has(large);
  });
  if (states.size() == all) return {};
  const bool whole = std::ranges::any_of(states, [](const auto& entry) { return StateHead::of(entry.second).whole; });
  if (!whole) states.clear();  // the others need one
  return "what " + std::to_string(all - states.size()) + " of " + std::to_string(all) +
         " ranks keep: its large part (optimizer state of trainers, buffers) is not in server 0's store any more (its "
         "log says why); a job that is restored from it begins that anew. Save a later round to have it";
}

bool waits(const CheckpointStatus& status, const std::string& job) {
  return status.step == CheckpointStep::kWaiting && status.job == job;
}

}  // namespace

const char* name_of(CheckpointStep step) {
  static constexpr const char* kNames[] = {"waiting", "writing", "sealing", "loading", "done", "failed"};
  return kNames[static_cast<int>(step)];
}

const char* name_of(CheckpointKind kind) {
  static constexpr const char* kNames[] = {"save", "restore", "deal"};
  return kNames[static_cast<int>(kind)];
}

std::optional<CheckpointStatus> Checkpoints::status(std::uint64_t id) const {
  const auto found = checkpoints_.find(id);
  return found == checkpoints_.end() ? std::nullopt : std::optional(found->second.status);
}

Result<Checkpoints::Checkpoint*> Checkpoints::begin(Checkpoint checkpoint, std::uint64_t now_ms) {
  std::size_t under_way = 0;
  for (auto& [id, other] : checkpoints_) {
    if (other.status.over()) continue;
    const bool same = other.status.job == checkpoint.status.job;
    if (same && other.save.scheduled && !checkpoint.save.scheduled) {
      end(other, "another order takes its place", now_ms);
      continue;
    }
    ++under_way;
    if (same) {
      return fail(ErrorCode::kInvalidArgument, "job '" + checkpoint.status.job + "' is being " +
                                                   (other.status.kind == CheckpointKind::kSave      ? "saved"
                                                    : other.status.kind == CheckpointKind::kRestore ? "restored"
                                                                                                    : "dealt anew") +
                                                   " already; wait for its end");
    }
  }
  if (under_way >= (checkpoint.save.scheduled ? kMaxScheduled : kMaxUnderWay)) {
    return fail(ErrorCode::kLimit, std::to_string(under_way) + " checkpoints are being saved or restored, the limit; " +
                                       "wait for their end");
  }
  for (auto at = checkpoints_.begin(); checkpoints_.size() - under_way >= kKept;) {
    at = at->second.status.over() ? checkpoints_.erase(at) : std::next(at);
  }
  checkpoint.status.id = checkpoint.order = ++last_id_;
  checkpoint.status.begun_ms = now_ms;
  return &checkpoints_.emplace(last_id_, std::move(checkpoint)).first->second;
}

Result<std::uint64_t> Checkpoints::save(const SaveOrder& order, std::uint64_t now_ms) {
  Checkpoint checkpoint;
  checkpoint.save = order;
  checkpoint.status.job = order.job;
  const Result<Checkpoint*> begun = begin(std::move(checkpoint), now_ms);
  if (!begun) return tl::unexpected(begun.error());
  return (*begun)->status.id;
}

Result<std::uint64_t> Checkpoints::restore(const RestoreOrder& order, const JobRecord& record, std::uint64_t now_ms) {
  Checkpoint checkpoint;
  checkpoint.record = record;
  checkpoint.status.kind = CheckpointKind::kRestore;
  checkpoint.status.job = order.name;
  checkpoint.status.path = order.directory;
  const Result<Checkpoint*> begun = begin_loading(std::move(checkpoint), now_ms);
  if (!begun) return tl::unexpected(begun.error());
  const CheckpointStatus& status = (*begun)->status;
  output_.log("job '" + status.job + "' is being restored from '" + order.directory + "', round " +
              std::to_string(status.round.value));
  for (const std::uint16_t shard : status.awaited) {
    output_.send(peers_.servers().at(shard).peer,
                 LoadCheckpoint{status.id, record.job, order.name, order.manifest_checksum, order.directory,
                                record.owners, ShardIndex(shard) == peers_.home()});
  }
  return status.id;
}

// Servers that get chunks load them; the coordinator's has large parts of what ranks keep, too.
Result<Checkpoints::Checkpoint*> Checkpoints::begin_loading(Checkpoint checkpoint, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  status.step = CheckpointStep::kLoading;
  status.round = checkpoint.record.committed;
  status.awaited = shards_of(checkpoint.record);
  if (!large_parts_of(checkpoint.record.rank_states).empty()) status.awaited.insert(peers_.home().value);
  return begin(std::move(checkpoint), now_ms);
}

Status Checkpoints::room_for(const std::string& job) const {
  std::size_t under_way = 0;
  for (const auto& [id, other] : checkpoints_) {
    if (other.status.over()) continue;
    ++under_way;
    const bool waits_too = other.status.step == CheckpointStep::kWaiting || other.save.scheduled;
    if (other.status.job == job && !waits_too) return fail(ErrorCode::kUnavailable, "a checkpoint of it is being made");
  }
  if (under_way < kMaxUnderWay) return {};
  return fail(ErrorCode::kLimit, std::to_string(under_way) + " checkpoints are being saved or restored, the limit");
}

Status Checkpoints::deal(const std::string& job, const JobRecord& record, const JobRecord& before,
                         const std::vector<DealtPart>& parts, std::uint64_t now_ms) {
  Checkpoint checkpoint;
  checkpoint.record = record;
  const auto has = [&](const LargePart& large) { return jobs_.has_part(before.job, large); };
  if (const std::string lacks = leave_out_lost(checkpoint.record.rank_states, has); !lacks.empty()) {
    output_.log("job '" + job + "' goes to other servers without " + lacks, LogLevel::kWarning);
  }
  checkpoint.status.kind = CheckpointKind::kDeal;
  checkpoint.status.job = job;
  for (const DealtPart& part : parts) checkpoint.read_from.insert(part.from.shard.value);
  const Result<Checkpoint*> begun = begin_loading(std::move(checkpoint), now_ms);
  if (!begun) return tl::unexpected(begun.error());
  DealChunks order{(*begun)->order, record.job,    job,   before.job, record.committed,
                   before.owners,   record.owners, parts, {}};
  const std::set<LargePart> large = large_parts_of((*begun)->record.rank_states);
  for (const std::uint16_t shard : (*begun)->status.awaited) {
    order.large.clear();
    if (ShardIndex(shard) == peers_.home()) order.large.assign(large.begin(), large.end());
    output_.send(peers_.servers().at(shard).peer, order);
  }
  return {};
}

bool Checkpoints::awaits_snapshot(const std::string& job) const {
  return std::ranges::any_of(checkpoints_, [&](const auto& entry) { return waits(entry.second.status, job); });
}

void Checkpoints::write(const std::string& job, const JobRecord& record, std::uint32_t nodes,
                        const std::set<std::uint16_t>& shards, std::uint64_t now_ms, ViewId from_memory) {
  for (auto& [id, checkpoint] : checkpoints_) {
    CheckpointStatus& status = checkpoint.status;
    if (!waits(status, job)) continue;
    checkpoint.record = record;
    checkpoint.nodes = nodes;
    checkpoint.from_memory = from_memory != ViewId();
    status.round = record.committed;
    status.path = checkpoint.save.directory + (checkpoint.save.directory.ends_with('/') ? "" : "/") +
                  checkpoint_name(status.job, status.round);
    status.step = CheckpointStep::kWriting;
    status.awaited = shards;
    for (const std::uint16_t shard : shards) {
      const Peers::Server* server = peers_.alive(shard);
      if (!server) {
        end(checkpoint, "server " + std::to_string(shard) + ", which has a part of it, is not there", now_ms);
        break;
      }
      output_.send(server->peer,
                   WriteCheckpoint{checkpoint.order, record.job, status.round, partial_of(status), from_memory});
    }
  }
}

bool Checkpoints::writes_from_memory(const std::string& job) const {
  return std::ranges::any_of(checkpoints_, [&](const auto& entry) {
    const Checkpoint& checkpoint = entry.second;
    const CheckpointStatus& status = checkpoint.status;
    return checkpoint.from_memory && status.job == job && status.step == CheckpointStep::kWriting;
  });
}

void Checkpoints::wait_again(Checkpoint& checkpoint) {
  drop(checkpoint);
  checkpoint.order = ++last_id_;
  checkpoint.from_memory = false;
  checkpoint.shards.clear();
  checkpoint.works.reset();
  checkpoint.status.awaited.clear();
  checkpoint.status.bytes = 0;
  checkpoint.status.step = CheckpointStep::kWaiting;
}

void Checkpoints::drop(const Checkpoint& checkpoint) const {
  const CheckpointStatus& status = checkpoint.status;
  const DropCheckpoint order =
      status.loads() ? DropCheckpoint{checkpoint.record.job, {}} : DropCheckpoint{JobId(0), partial_of(status)};
  for (const auto& [index, server] : peers_.servers()) {
    if (server.alive) output_.send(server.peer, order);
  }
}

std::set<LargePart> Checkpoints::large_parts(JobId job) const {
  std::set<LargePart> parts;
  for (const auto& [id, checkpoint] : checkpoints_) {
    const CheckpointStep step = checkpoint.status.step;
    if (checkpoint.record.job != job || (step != CheckpointStep::kWriting && step != CheckpointStep::kSealing))
      continue;
    parts.merge(large_parts_of(checkpoint.record.rank_states));
  }
  return parts;
}

// A rank's state may come after the snapshot was committed, and before the next one is.
void Checkpoints::look_for_parts(Checkpoint& checkpoint, std::uint64_t now_ms) {
  const CheckpointStatus& status = checkpoint.status;
  const JobRecord* now = jobs_.record_of(status.job);
  if (now && now->job == checkpoint.record.job && now->committed <= status.round) {
    RankStates& states = checkpoint.record.rank_states;
    for (auto& [rank, state] : jobs_.rank_states_at(status.job, status.round)) {
      states.insert_or_assign(rank, std::move(state));
    }
    const bool whole = std::ranges::any_of(states, [](const auto& kept) { return StateHead::of(kept.second).whole; });
    if (jobs_.state_comes(status.job, status.round, whole, now_ms)) return;
  }
  seal(checkpoint, now_ms);
}

void Checkpoints::seal(Checkpoint& checkpoint, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  const Peers::Server* sealer = peers_.alive(peers_.home().value);
  if (!sealer) return end(checkpoint, peers_.home_in_words() + ", which finishes checkpoints, is not there", now_ms);
  const JobRecord& record = checkpoint.record;
  Manifest manifest;
  manifest.created = checkpoint.save.created;
  manifest.job_json = record.job_json;
  manifest.round = status.round;
  manifest.view = record.view;
  manifest.nodes = checkpoint.nodes;
  manifest.world_size = record.world_size;
  manifest.tensors = record.tensors;
  manifest.rank_states = record.rank_states;
  status.lacks =
      leave_out_lost(manifest.rank_states, [&](const LargePart& large) { return jobs_.has_part(record.job, large); });
  if (!status.lacks.empty()) {
    output_.log("the checkpoint of job '" + status.job + "' lacks " + status.lacks, LogLevel::kWarning);
  }
  manifest.computed_with = record.computed_with;
  manifest.chunk_elements = record.chunk_elements;
  for (const ChunkOwner owner : record.owners) manifest.chunk_shards.push_back(owner.shard);
  std::ranges::sort(checkpoint.shards, {}, &ManifestShard::shard);
  manifest.shards = checkpoint.shards;
  status.step = CheckpointStep::kSealing;
  status.awaited = {peers_.home().value};
  output_.send(sealer->peer, SealCheckpoint{checkpoint.order, record.job, partial_of(status), status.path,
                                            to_json(manifest), status.lacks.empty() ? checkpoint.save.keep : 0});
}

void Checkpoints::on(ShardIndex shard, const CheckpointDone& m, std::uint64_t now_ms) {
  const auto found = std::ranges::find(checkpoints_, m.operation, [](const auto& entry) { return entry.second.order; });
  if (found == checkpoints_.end()) return;
  Checkpoint& checkpoint = found->second;
  CheckpointStatus& status = checkpoint.status;
  if (status.over() || status.awaited.erase(shard.value) == 0) return;
  const bool missed =
      !m.ok && checkpoint.from_memory && status.step == CheckpointStep::kWriting && m.code == ErrorCode::kStopped;
  if (missed && jobs_.takes_snapshot(status.job)) return wait_again(checkpoint);
  if (!m.ok) return end(checkpoint, m.message, now_ms);
  status.bytes += m.bytes;
  if (status.step == CheckpointStep::kWriting) {
    const auto chunks = std::ranges::count(checkpoint.record.owners, shard, &ChunkOwner::shard);
    checkpoint.shards.push_back(
        {shard_file_name(shard), shard, static_cast<std::uint32_t>(chunks), m.bytes, m.checksum});
    if (status.awaited.empty()) look_for_parts(checkpoint, now_ms);
  } else if (status.step == CheckpointStep::kSealing) {
    status.unchanged = m.unchanged;
    end(checkpoint, {}, now_ms);
  } else {
    if (status.kind == CheckpointKind::kDeal && has_chunks(checkpoint.record, shard.value)) {
      peers_.add_snapshot(shard.value, checkpoint.record.job, status.job, status.round);
    }
    if (status.awaited.empty()) record(checkpoint, now_ms);
  }
}

void Checkpoints::record(Checkpoint& checkpoint, std::uint64_t now_ms) {
  const CheckpointStatus& status = checkpoint.status;
  if (checkpoint.recorded) return;
  if (status.kind == CheckpointKind::kDeal && !jobs_.dealt_is_copied(status.job, checkpoint.record, now_ms)) return;
  checkpoint.recorded = true;
  output_.save(checkpoint.record);  // and on in saved()
}

std::string Checkpoints::dealt_under(JobId job) const {
  const auto found = std::ranges::find_if(checkpoints_, [&](const auto& entry) {
    const CheckpointStatus& of = entry.second.status;
    return of.kind == CheckpointKind::kDeal && !of.over() && entry.second.record.job == job;
  });
  return found == checkpoints_.end() ? std::string() : found->second.status.job;
}

void Checkpoints::saved(JobId job, const Status& status, std::uint64_t now_ms) {
  const auto found = std::ranges::find_if(checkpoints_, [&](const auto& entry) {
    const CheckpointStatus& of = entry.second.status;
    return of.step == CheckpointStep::kLoading && of.awaited.empty() && entry.second.record.job == job;
  });
  if (found == checkpoints_.end()) return;  // of a job that is gone
  if (!status) return end(found->second, "cannot record the job: " + status.error().message, now_ms);
  jobs_.loaded(found->second.status.job, found->second.record);
  end(found->second, {}, now_ms);
}

void Checkpoints::unreadable(JobId job, const std::string& why, std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    const bool reads = checkpoint.status.step == CheckpointStep::kLoading && checkpoint.record.job == job;
    if (reads && !checkpoint.recorded) end(checkpoint, "what is written cannot be read: " + why, now_ms);
  }
}

bool Checkpoints::restores(JobId job) const {
  return std::ranges::any_of(checkpoints_, [&](const auto& entry) {
    return entry.second.status.step == CheckpointStep::kLoading && entry.second.record.job == job;
  });
}

void Checkpoints::end(Checkpoint& checkpoint, const std::string& failure, std::uint64_t now_ms) {
  CheckpointStatus& status = checkpoint.status;
  const std::string what = std::string(name_of(status.kind)) + " of job '" + status.job + "'";
  status.ended_ms = now_ms;
  if (failure.empty()) {
    status.step = CheckpointStep::kDone;
    output_.log("the " + what + " is done" + (status.path.empty() ? "" : ": '" + status.path + "'") +
                (status.unchanged ? ", which was there already" : ""));
    return;
  }
  const bool begun = status.step != CheckpointStep::kWaiting;
  status.step = CheckpointStep::kFailed;
  status.message = failure;
  output_.log("the " + what + " failed: " + failure, LogLevel::kError);
  if (begun) drop(checkpoint);
  if (status.loads()) jobs_.not_loaded(status.job, failure, now_ms);
}

void Checkpoints::view_over(const std::string& job, const std::string& why, std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    if (!waits(checkpoint.status, job)) continue;
    end(checkpoint,
        "the job stopped before its snapshot was complete (" + why +
            "); order it again, or with --committed for the newest one that is",
        now_ms);
  }
}

void Checkpoints::server_lost(std::uint16_t server, const std::string& why, std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    const CheckpointStatus& status = checkpoint.status;
    if (status.over()) continue;
    const bool loaded = status.loads() && !checkpoint.recorded && has_chunks(checkpoint.record, server);
    const bool read = !status.awaited.empty() && checkpoint.read_from.contains(server);
    const bool needed = status.awaited.contains(server) || read || loaded;
    if (needed) end(checkpoint, why, now_ms);
  }
}

// Counts the bytes of the servers that it waits for; gives another number as well when one of them is done.
std::uint64_t Checkpoints::progress(const CheckpointStatus& status) const {
  std::uint64_t sum = status.awaited.empty() ? jobs_.state_taken(status.job) : status.awaited.size();
  for (const std::uint16_t server : status.awaited) {
    if (const auto moved = moved_.find(server); moved != moved_.end()) sum += moved->second;
  }
  return sum;
}

void Checkpoints::tick(std::uint64_t now_ms) {
  for (auto& [id, checkpoint] : checkpoints_) {
    const CheckpointStatus& status = checkpoint.status;
    if (status.over()) continue;
    const bool waiting = status.step == CheckpointStep::kWaiting;
    if (status.step == CheckpointStep::kWriting && status.awaited.empty()) look_for_parts(checkpoint, now_ms);
    if (status.step == CheckpointStep::kLoading && status.awaited.empty()) record(checkpoint, now_ms);
    if (status.over()) continue;
    if (!waiting) {
      if (!checkpoint.works) checkpoint.works.emplace(kWorkingPatienceMs, now_ms);
      if (checkpoint.from_memory && jobs_.has_yet_to_reach(status.job, status.round)) checkpoint.works->renew(now_ms);
      if (!checkpoint.works->over(progress(status), now_ms)) continue;
      if (status.awaited.empty()) {
        if (checkpoint.from_memory) end(checkpoint, "no rank gave the state that it keeps with this round", now_ms);
        continue;
      }
      std::vector<std::string> names;
      for (const std::uint16_t server : status.awaited) names.push_back("server " + std::to_string(server));
      end(checkpoint,
          listed(names) + (names.size() == 1 ? " has" : " have") + " read and written nothing for " +
              std::to_string(kWorkingPatienceMs / 60'000) + " minutes; is the checkpoint's disk well?",
          now_ms);
    } else if (now_ms > status.begun_ms + kWaitingPatienceMs && !jobs_.takes_snapshot(status.job)) {
      end(checkpoint,
          "no snapshot was committed in time; does the job make progress? --committed saves the newest one that there "
          "is",
          now_ms);
    }
  }
}

}  // namespace tributary
