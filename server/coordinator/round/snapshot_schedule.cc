#include "server/coordinator/round/snapshot_schedule.h"

#include <algorithm>
#include <cmath>

namespace tributary {
namespace {

// How long after a refused or missed snapshot the next one is tried; longer each time, up to kMaxLeadFactor times as
// long.
constexpr std::uint64_t kSnapshotRetryMs = 1'000;
// A snapshot round is named this far ahead of the fastest shard, so that the message is there before the round is.
constexpr double kLeadMs = 300.0;
constexpr std::uint64_t kMaxLeadFactor = 32;
// After so long a snapshot whose round is still far gives way to a nearer one. (While a job pauses, every round looks
// far.)
constexpr std::uint64_t kFarMs = 5'000;
// The memory that a lane gets in a millisecond for the steps after the capture (server/lane/pool_preparer.h), about: an
// eighth of one core's rate, as training keeps most cores busy. Slower shards are waited for, so long at most.
constexpr std::uint64_t kPreparedBytesPerMs = 125'000;
constexpr std::uint64_t kPreparePatienceMs = 30'000;
constexpr double kMaxRound = 1e18;  // bound on a shard's claim

}  // namespace

std::optional<NamedSnapshot> snapshot_to_name(const SnapshotNeeds& needs) {
  std::optional<NamedSnapshot> nearest;
  const auto offer = [&](std::uint64_t round, const char* why) {
    if (!nearest || round < nearest->round) nearest = NamedSnapshot{round, why};
  };
  if (!needs.next) return nearest;
  const std::uint64_t next = *needs.next;
  if (needs.redo) offer(next, "nodes that keep what they pushed since the last one");
  if (needs.awaited) offer(next, "a save or a node that waits for it");
  if (!needs.due) return nearest;
  if (needs.every_rounds == 0) {
    offer(next, "the job's schedule");
  } else {
    const std::uint64_t past = next % needs.every_rounds;
    const std::uint64_t multiple = past == 0 ? next : next + (needs.every_rounds - past);
    if (!gives_way(multiple, next, needs.fastest)) offer(multiple, "the job's schedule");
  }
  return nearest;
}

bool gives_way(std::uint64_t under_way, std::uint64_t named, std::uint64_t fastest) {
  return under_way > named && under_way - named > named - std::min(named, fastest);
}

SnapshotSchedule::SnapshotSchedule(const SnapshotConfig& config, std::uint64_t prepare_bytes, std::uint64_t now_ms)
    : config_(config), prepare_bytes_(prepare_bytes), due_ms_(next_due(now_ms)) {}

std::optional<std::uint64_t> SnapshotSchedule::next_due(std::uint64_t now_ms) const {
  if (config_.every_s == 0 && config_.every_rounds == 0) return std::nullopt;
  return now_ms + config_.every_s * 1000ull;
}

// The next round that a snapshot can be named for; none if that is not known, or nothing has been trained yet.
std::optional<std::uint64_t> SnapshotSchedule::next_to_name(const JobPaces& paces, Round start,
                                                            std::uint64_t now_ms) const {
  const double ahead_ms = kLeadMs + static_cast<double>(preparing_ ? 0 : prepare_bytes_ / kPreparedBytesPerMs);
  const std::optional<double> reach =
      paces.reach(ahead_ms, static_cast<double>(std::min(missed_ + 1, kMaxLeadFactor)), now_ms);
  if (!reach) return std::nullopt;
  // Not before the view's start: repeated rounds have no residuals any more, and may be over at any moment.
  const double round = std::max(*reach, static_cast<double>(std::max(start, committed_).value));
  return static_cast<std::uint64_t>(std::ceil(std::min(round, kMaxRound))) + 2;
}

bool SnapshotSchedule::prepared(const std::set<std::uint16_t>& shards, std::uint64_t now_ms) const {
  if (prepare_bytes_ == 0) return true;
  return preparing_ &&
         (now_ms >= preparing_->since_ms + kPreparePatienceMs || std::ranges::includes(preparing_->done, shards));
}

SnapshotSchedule::Step SnapshotSchedule::step(const JobPaces& paces, Round start, const std::set<std::uint16_t>& shards,
                                              const Wishes& wishes, std::uint64_t now_ms) {
  if (now_ms < retry_ms_) return {};
  if (under_way_ && !under_way_->done.empty()) return {};  // a shard is through with that already
  SnapshotNeeds needs;
  needs.fastest = paces.fastest();
  needs.next = next_to_name(paces, start, now_ms);
  needs.due = due_ms_ && now_ms >= *due_ms_;
  needs.every_rounds = config_.every_rounds;
  needs.awaited = wishes.awaited;
  needs.redo = wishes.redo_from && needs.next && *needs.next >= *wishes.redo_from;
  const std::optional<NamedSnapshot> named = snapshot_to_name(needs);
  if (!named) return {};
  if (under_way_ &&
      (now_ms < under_way_->named_ms + kFarMs || !gives_way(under_way_->round.value, named->round, needs.fastest))) {
    return {};
  }
  if (!prepared(shards, now_ms)) {
    const bool asked = preparing_.has_value();
    if (!asked) preparing_ = Preparing{now_ms, {}};
    return {.prepare = !asked};
  }
  const std::optional<Round> gave_way = under_way();
  under_way_ = UnderWay{Round(named->round), now_ms, {}};
  preparing_.reset();
  return {.named = named->why, .gave_way = gave_way};
}

void SnapshotSchedule::has_memory(std::uint16_t shard) {
  if (preparing_) preparing_->done.insert(shard);
}

void SnapshotSchedule::wrote(std::uint16_t shard, std::uint64_t bytes) {
  under_way_->done.insert(shard);
  under_way_->bytes = std::max(under_way_->bytes, bytes);
}

bool SnapshotSchedule::written(const std::set<std::uint16_t>& shards) const {
  return under_way_ && std::ranges::includes(under_way_->done, shards);
}

std::uint64_t SnapshotSchedule::committed(std::uint64_t now_ms) {
  const std::uint64_t bytes = under_way_->bytes;
  committed_ = under_way_->round;
  under_way_.reset();
  missed_ = 0;
  due_ms_ = next_due(now_ms);
  return bytes;
}

void SnapshotSchedule::missed(std::uint64_t now_ms) {
  under_way_.reset();
  ++missed_;
  retry_ms_ = now_ms + kSnapshotRetryMs * std::min(missed_, kMaxLeadFactor);
  if (due_ms_) due_ms_ = retry_ms_;
}

bool SnapshotSchedule::overdue(const JobPaces& paces, const std::set<std::uint16_t>& shards,
                               std::uint64_t now_ms) const {
  return under_way_ && now_ms > under_way_->named_ms + kWritingPatienceMs &&
         paces.silent(shards, under_way_->done, JobPaces::Sign::kWrites, kWritingPatienceMs, now_ms);
}

std::optional<Round> SnapshotSchedule::under_way() const {
  return under_way_ ? std::optional(under_way_->round) : std::nullopt;
}

bool SnapshotSchedule::awaits_part_of(std::uint16_t shard) const {
  return under_way_ && !under_way_->done.contains(shard);
}

bool SnapshotSchedule::awaits_memory_of(std::uint16_t shard) const {
  return preparing_ && !preparing_->done.contains(shard);
}

}  // namespace tributary
