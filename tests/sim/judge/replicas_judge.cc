#include "tests/sim/judge/replicas_judge.h"

#include <algorithm>

#include "common/config/job_json.h"

namespace tributary::sim {

void ReplicasJudge::welcome(const JobWelcome& welcome) {
  if (job_ && *job_ != welcome.job) broken_("a view opens of another job than there is");
  job_ = welcome.job;
  if (welcome.view < view_) return broken_("a node is welcome in a view that is over");
  const Round start = welcome.resume_round;
  if (welcome.view == view_) {
    if (start != start_) broken_("the nodes of a view begin at different rounds");
    return;
  }
  view_ = welcome.view;
  start_ = start;
  ++outcome_.views;
  ++(welcome.resume ? outcome_.restored : outcome_.kept);
  if (start != newest_named()) {
    broken_("a view begins at " + in_words(start) + ", and a node has " + in_words(newest_named()));
  }
  if (welcome.resume != (start.value != 0)) broken_("a view does not say that it goes on");
  if (start.value == 0 && known_.value != 0) {
    broken_("the job begins anew, and the coordinator knows that it was at " + in_words(known_));
  }
  known_ = start;
}

void ReplicasJudge::look_at_registry() {
  for (const auto& [job, record] : registry_.jobs) {
    const Result<JobConfig> config = job_from_json(record.record.job_json);
    if (config && config->name == scenario_.job) known_ = std::max(known_, record.record.committed);
  }
}

void ReplicasJudge::set_up(const NodeJobSpec& spec) {
  layout_ = spec.view->layout;
  const JudgeSetup setup = setup_of(scenario_, spec.view->plan->config, layout_);
  rounds_ = std::make_unique<RoundsJudge>(setup, broken_);
}

void ReplicasJudge::delivered(const NodeJobSpec& spec, ChunkIndex chunk, Version version,
                              std::span<const float> params) {
  if (!rounds_) set_up(spec);
  const ViewPlan& view = *spec.view;
  const std::string where = "node " + std::to_string(spec.node.value) + " chunk " + std::to_string(chunk.value);
  auto& [in, before] = at_[{spec.node.value, chunk.value}];
  const bool first = in != view.view;
  if (version.value != (first ? view.start.value : before + 1)) {
    broken_(where + " got version " + std::to_string(version.value) + " in a view that began at " +
            in_words(view.start));
  }
  if (version.value > scenario_.rounds) return broken_(where + " goes beyond the last round");
  in = view.view;
  before = version.value;
  if (version.value > view.start.value) ++deliveries_;
  rounds_->delivered(spec.node.value, chunk, version, params);
}

void ReplicasJudge::kept(Round round, const ReplicaDisk::State& state) {
  if (state.size() != layout_->chunks()) broken_("a checkpoint lacks chunks");
  for (const auto& [index, chunk] : state) {
    if (!same_bits(chunk.params.floats(), rounds_->master(ChunkIndex(index), round.value))) {
      broken_("a checkpoint of " + in_words(round) + " has not the reference's bits");
    }
  }
}

void ReplicasJudge::trained(std::span<const float> params) {
  for (std::uint32_t c = 0; c < layout_->chunks(); ++c) {
    const ChunkRange range = layout_->chunk(ChunkIndex(c));
    if (!same_bits(params.subspan(range.begin, range.elements), rounds_->visible(ChunkIndex(c), scenario_.rounds))) {
      return broken_("a node ends with other parameters than the reference's");
    }
  }
}

bool ReplicasJudge::on_disk(Round round) const {
  const Result<Round> newest = disk_.newest();
  return newest && *newest >= round;
}

void ReplicasJudge::told(Round round, const std::optional<Error>& not_saved) {
  if (!not_saved) {
    if (!lost_ && !on_disk(round)) broken_("a rank is told that " + in_words(round) + " is saved, and it is not");
    return;
  }
  if (not_saved->message.empty()) broken_("a rank is told that nothing is saved, for no reason");
}

Round ReplicasJudge::newest_named() const {
  Round newest;
  for (const auto& [node, round] : named_) newest = std::max(newest, round);
  return newest;
}

bool ReplicasJudge::may_refuse(const Error& error) const {
  return lost_ && newest_named() == Round() && error.code == ErrorCode::kStore &&
         error.message.find("node 0") != std::string::npos && error.message.find("round ") != std::string::npos;
}

void ReplicasJudge::ended() {
  look_at_registry();
  if (!lost_ && !on_disk(Round(scenario_.rounds))) broken_("the last checkpoint is not there when all is done");
  if (known_.value != scenario_.rounds) broken_("the job is over, and its record does not say so");
}

}  // namespace tributary::sim
