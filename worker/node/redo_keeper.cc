#include "worker/node/redo_keeper.h"

#include <algorithm>
#include <utility>

#include "common/wire/redo_plan.h"

namespace tributary {

std::uint32_t RedoKeeper::rounds_for(const JobConfig& config, const Layout& layout) const {
  return std::min(redo_rounds(config, push_bytes(layout, config.push)), max_rounds_);
}

void RedoKeeper::adopt(const JobConfig& config, NodeRank node, const std::vector<TensorSpec>& tensors,
                       std::span<const std::uint32_t> model_ranks, FileDescriptor fd, std::uint64_t now_ms) {
  if (kept_.contains(config.name) || !has_rounds(config)) return;
  auto ring = RedoRing::adopt(std::move(fd), node, tensors, config.push, model_ranks);
  if (!ring) return logger_->info("{}: {}", job_in_words(config.name), ring.error().message);
  const std::uint64_t bytes = (*ring)->memory().size();
  auto share = BudgetShare::take(budget_, bytes);
  if (!share) {
    return logger_->warn(
        "{}: the pushes that an earlier worker kept ({} MB) do not fit into [limits] max_shared_memory",
        job_in_words(config.name), bytes / 1'000'000);
  }
  const RedoRing::Range range = (*ring)->kept();
  logger_->info("{}: took over what an earlier worker had pushed, up to round {}", job_in_words(config.name),
                range.last.value);
  kept_[config.name] = {std::move(*ring), std::move(share), now_ms};
}

bool RedoKeeper::busy(const std::string& job) const {
  const auto kept = kept_.find(job);
  return kept != kept_.end() && kept->second.ring->in_use();
}

std::string RedoKeeper::describe(const JobConfig& config, JoinJob& join, std::uint64_t spare) const {
  const auto kept = kept_.find(config.name);
  const bool mine = kept != kept_.end() && kept->second.ring->is_of(join.node, join.tensors, join.model_ranks);
  if (mine) {
    const RedoRing& ring = *kept->second.ring;
    const RedoRing::Range range = ring.kept(has_gate(config));
    join.redo_job = ring.job();
    join.redo_first = range.first;
    join.redo_last = range.last;
    join.redo_capacity = ring.rounds();
    join.redo_members = ring.members();
    const RedoRing::Range residuals = ring.residuals();
    join.residual_first = residuals.first;
    join.residual_last = residuals.last;
    return {};
  }
  const auto whole = Layout::unowned(join.tensors);
  if (!whole || !has_rounds(config) || config.recovery.redo_mb == 0) return {};
  const std::optional<Layout> layout = whole->part(join.model_ranks);
  if (!layout) return {};
  const std::uint32_t rounds = rounds_for(config, *layout);
  if (rounds == 0) {
    const std::uint64_t round = push_bytes(*layout, config.push);
    const std::uint64_t enough = (round * kMinRedoRounds + (1u << 20) - 1) >> 20;
    return "a round's pushes are " + std::to_string(round / 1'000'000) + " MB, and " + std::to_string(kMinRedoRounds) +
           " rounds do not fit into recovery.redo_mb = " + std::to_string(config.recovery.redo_mb) + "; " +
           std::to_string(enough) + " would do";
  }
  const std::uint64_t bytes = RedoRing::bytes_needed(*layout, config.push, rounds, residual_rounds(config));
  // One of another rank of the node's, or of another part of the model, goes when the view begins.
  const std::uint64_t used = budget_->used() - spare - (kept == kept_.end() ? 0 : kept->second.ring->memory().size());
  if (bytes > budget_->limit() || used > budget_->limit() - bytes) {
    return "[limits] max_shared_memory has no room for the pushes of " + std::to_string(rounds) + " rounds (" +
           std::to_string(bytes / 1'000'000) + " MB)";
  }
  join.redo_capacity = rounds;
  return {};
}

Result<std::shared_ptr<RedoRing>> RedoKeeper::begin(const JobConfig& config, NodeRank node, const Layout& layout,
                                                    const JobWelcome& m, std::uint64_t now_ms) {
  if (const auto kept = kept_.find(config.name);
      kept != kept_.end() && (!m.redo || !kept->second.ring->fits(m.job, node, layout, config.push))) {
    kept_.erase(kept);
  }
  const auto lost = std::ranges::find_if(m.redo_after, [&](Version has) { return has.value < m.resume_round.value; });
  if (!m.redo && lost == m.redo_after.end()) return std::shared_ptr<RedoRing>();
  auto kept = kept_.find(config.name);
  if (lost != m.redo_after.end()) {
    const RedoRing::Range range = kept == kept_.end() ? RedoRing::Range{} : kept->second.ring->kept(has_gate(config));
    if (range.first.value > lost->value + 1 || range.last < m.resume_round) {
      return fail(ErrorCode::kUnavailable,
                  job_in_words(config.name) + " is to push rounds " + std::to_string(lost->value + 1) + " to " +
                      std::to_string(m.resume_round.value) + " again, but this node no longer has them; attach again");
    }
  }
  if (kept == kept_.end()) {
    // (It was reckoned with another chunk size when the node joined.)
    const std::uint32_t rounds = std::max(rounds_for(config, layout), kMinRedoRounds);
    const std::uint64_t bytes = RedoRing::bytes_needed(layout, config.push, rounds, residual_rounds(config));
    auto share = BudgetShare::take(budget_, bytes);
    if (!share) {
      return fail(ErrorCode::kLimit, job_in_words(config.name) + " needs " + std::to_string(bytes) +
                                         " bytes to keep what it pushes, " + std::to_string(budget_->used()) + " of " +
                                         std::to_string(budget_->limit()) +
                                         " are taken; raise [limits] max_shared_memory in worker.toml, or lower "
                                         "recovery.redo_mb (0: nothing is kept)");
    }
    auto ring = RedoRing::create(m.job, node, layout, config.push, rounds, residual_rounds(config));
    if (!ring) return tl::unexpected(ring.error());
    kept = kept_.emplace(config.name, Kept{std::move(*ring), std::move(share), now_ms}).first;
  }
  RedoRing& ring = *kept->second.ring;
  // Rounds that other nodes took part in could not be summed again as they were.
  ring.forget_after(ring.members() == m.members ? m.resume_round : Round());
  ring.set_members(m.members);
  return kept->second.ring;
}

bool RedoKeeper::keeps(const std::string& name, JobId job) const {
  const auto kept = kept_.find(name);
  return kept != kept_.end() && kept->second.ring->job() == job;
}

void RedoKeeper::covered(JobId job, Round round) {
  const auto kept = std::ranges::find_if(kept_, [&](const auto& entry) { return entry.second.ring->job() == job; });
  if (kept != kept_.end() && kept->second.ring->kept().last <= round) kept_.erase(kept);
}

void RedoKeeper::in_use(const std::string& job, std::uint64_t now_ms) {
  if (const auto kept = kept_.find(job); kept != kept_.end()) kept->second.seen_ms = now_ms;
}

void RedoKeeper::tick(std::uint64_t now_ms) {
  std::erase_if(kept_, [&](const auto& entry) { return now_ms > entry.second.seen_ms + kKeepMs; });
}

}  // namespace tributary
