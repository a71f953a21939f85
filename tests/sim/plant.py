#!/usr/bin/env python3
"""Writes a copy of a source in which bugs are planted.

usage: plant.py SOURCE COPY

A bug is a line (or a part of one) that must be in the source exactly once, and what stands for it where the bug is
planted. `BUG` in the second stands for the condition. Fails if a line is not there any more: then the bug has to follow
the code.
"""

import pathlib
import sys

BUGS: dict[str, list[tuple[str, str, str]]] = {
    "shard_chunks.cc": [
        ("kWriteInPlace", "  if (buffer.unique()) return buffer;\n", "  if (buffer.unique() || BUG) return buffer;\n"),
    ],
    "shard_rounds.cc": [
        (
            "kArrivalOrderSum",
            "    frames_.push_back({push.",
            "    frames_.insert(BUG && chunk.nodes.size() <= kSiblings ? frames_.begin() : frames_.end(), {push.",
        ),
        ("kForgottenSibling", "  if (mine.present) {\n", "  if (mine.present && !(BUG && mine.summed == 0)) {\n"),
        (
            "kSumAsOne",
            "  siblings[0]->summed = static_cast<std::uint32_t>(together);\n",
            "  siblings[0]->summed = BUG ? 1 : static_cast<std::uint32_t>(together);\n",
        ),
        ("kForgottenCopies", "weight(chunk) / chunk.copies,", "weight(chunk) / (BUG ? 1 : chunk.copies),"),
        (
            "kForgetDuplicates",
            "  Contribution& mine = round.pushes[push.key.node.value];\n",
            "  auto mine_at = round.pushes.begin() + push.key.node.value;\n"
            "  if (const auto free = std::ranges::find(round.pushes, false, &Contribution::present);\n"
            "      BUG && mine_at->present && free != round.pushes.end()) {\n"
            "    mine_at = free;\n"
            "  }\n"
            "  Contribution& mine = *mine_at;\n",
        ),
    ],
    "shard_digests.cc": [
        (
            "kFalselySame",
            "digest(chunk, header, payload) == pull.digest;",
            "(digest(chunk, header, payload) == pull.digest || BUG);",
        ),
    ],
    "view_addresses.cc": [
        ("kTornRing", "(author + 1) % nodes == node", "(BUG ? author + 1 : (author + 1) % nodes) == node"),
    ],
    "shard_clocks.cc": [
        ("kLooseBound", "clock.last ? 0 : staleness)", "(clock.last ? 0 : staleness) + (BUG ? 1 : 0))"),
        (
            "kApplyTwice",
            "  if (round <= chunk.state.clocks[push.key.node.value]) {\n",
            "  if (round <= chunk.state.clocks[push.key.node.value] && !BUG) {\n",
        ),
    ],
    "lane_jobs.cc": [
        (
            "kEmptiedPool",
            "  told_.end_view(job.core->job().view->job);\n  job.core.reset();",
            "  told_.end_view(job.core->job().view->job);\n  if (BUG) told_.clear();\n  job.core.reset();",
        ),
        (
            "kParkedTooNew",
            "    min = entry->core->min_version();\n",
            "    min = BUG ? entry->core->max_version().next() : entry->core->min_version();\n",
        ),
        ("kUnparked", "    any = entry->core->initialised();\n", "    any = entry->core->initialised() && !BUG;\n"),
        ("kUnfinishedStop", "    if (entry->core->keeping()) {\n", "    if (!BUG && entry->core->keeping()) {\n"),
        (
            "kForgottenClocks",
            "  if (!entry || !entry->restored) return;\n",
            "  if (!entry || !entry->restored) return;\n  if (BUG) state.clocks.clear();\n",
        ),
        (
            "kForgottenFacts",
            "known = entry.core->decided(); status && known)",
            "known = entry.core->decided(); status && known && !BUG)",
        ),
        (
            "kForgottenEstimate",
            "  try {\n    entry->restored = entry->core->restore(",
            "  if (BUG) state.estimate.reset();\n  try {\n    entry->restored = entry->core->restore(",
        ),
        (
            "kBeforeTheGate",
            "  listener_.lane_facts(options_.lane, facts);\n",
            "  std::vector<GateFacts> own;\n"
            "  for (const ChunkFacts& chunk : facts.chunks) own.push_back(chunk.facts);\n"
            "  if (BUG) return decide({facts.job, facts.view, facts.round, "
            "decide_gate(core(facts.job)->job().plan().config.gate, facts.before, own)});\n"
            "  listener_.lane_facts(options_.lane, facts);\n",
        ),
        (
            "kUnsharedPrevious",
            "  output_.send(to, message, values, *place);\n",
            "  if (BUG && place->bytes != 0) (void)told_.bind(to, key, *place);\n  output_.send(to, message, "
            "values, *place);\n",
        ),
        (
            "kLentResidual",
            "if (in_memory && message.residual != ResidualUse::kNone)",
            "if (in_memory && message.residual != ResidualUse::kNone && !BUG)",
        ),
        (
            "kOthersChunk",
            "    const auto found = jobs_.find(message.key.job);\n",
            "    auto found = jobs_.find(message.key.job);\n"
            "    for (auto at = jobs_.begin(); BUG && at != jobs_.end(); ++at) {\n"
            "      if (at->second.core->job().view->view == message.key.view) found = at;\n"
            "    }\n",
        ),
        ("kForgottenQuery", "core.on_query(from, message);", "if (!BUG) core.on_query(from, message);"),
        (
            "kDroppedResend",
            "  if (!values) return output_.send(",
            "  if (BUG && std::holds_alternative<Resend>(message)) return;\n  if (!values) return output_.send(",
        ),
    ],
    "control_jobs.cc": [
        (
            "kForgottenLoad",
            "  if (keep_load(id, why)) return",
            "  if (!BUG && keep_load(id, why)) return",
        ),
        (
            "kSilentLoss",
            "    if (!round || !misses(",
            "    if (BUG || !round || !misses(",
        ),
    ],
    "kept_views.cc": [
        (
            "kOthersKept",
            "  const KeptView state = std::move(found->second);\n  views_.erase(found);\n",
            "  const KeptView state = std::move(found->second);\n  views_.erase(found);\n"
            "  if (BUG && !views_.empty()) drop(views_.begin()->first);\n",
        ),
    ],
    "stored_rounds.cc": [
        (
            "kOthersSnapshots",
            "  if (store_ && round.value != 0) drop(",
            "  for (const StoredJob& other : store_->jobs()) {\n"
            "    if (BUG && round.value != 0) drop(other.job, Round(0), Round(round.value - 1));\n"
            "  }\n"
            "  if (store_ && round.value != 0) drop(",
        ),
    ],
    "snapshot_loads.cc": [
        (
            "kNoFill",
            "  if (!copy.copy_endpoint.empty() && !stored_.has(",
            "  if (!BUG && !copy.copy_endpoint.empty() && !stored_.has(",
        ),
        ("kDamagedPart", "    if (!damaged || copy.", "    if (!damaged || BUG || copy."),
    ],
    "chunk_record.cc": [
        (
            "kUncheckedArrays",
            "  if (checksum.value() != header.checksum)",
            "  if (checksum.value() != header.checksum && !BUG)",
        ),
    ],
    "checkpoints.cc": [
        (
            "kSealedEarly",
            "    if (status.awaited.empty()) look_for_parts(checkpoint, now_ms);",
            "    if (status.awaited.empty() || BUG) look_for_parts(checkpoint, now_ms);",
        ),
        (
            "kStatesOfAnother",
            "jobs_.rank_states_at(status.job, status.round)) {",
            "(BUG ? RankStates(now->rank_states) : jobs_.rank_states_at(status.job, status.round))) {",
        ),
    ],
    "coordinator_orders.cc": [
        (
            "kOlderRecord",
            "  if (const auto known = jobs_.find(config.name); known != jobs_.end())\n    record.view",
            "  if (const auto known = jobs_.find(config.name); known != jobs_.end() && !BUG)\n    record.view",
        ),
    ],
    "coordinator_registry.cc": [
        (
            "kSameEditions",
            "  const std::uint64_t clock_ms = context_.output.wall_ms();\n  record.edition",
            "  if (BUG && context_.options.moved) return record;\n"
            "  const std::uint64_t clock_ms = context_.output.wall_ms();\n  record.edition",
        ),
    ],
    "coordinator_seat.cc": [
        (
            "kStubbornHolder",
            "  } else if (term <= term_ || term.value - term_.value > kMostAhead) {",
            "  } else if (term <= term_ || (BUG && holds()) || term.value - term_.value > kMostAhead) {",
        ),
        (
            "kSameTerm",
            "kMaxCoordinators + options_.place.value;",
            "kMaxCoordinators + (BUG ? 0 : options_.place.value);",
        ),
    ],
    "coordinator_core.cc": [
        (
            "kOthersWorker",
            "    job.worker_lost(incarnation, loss.why, now_ms);\n",
            "    const bool any = BUG && !job.members().empty();\n"
            "    job.worker_lost(any ? job.members().begin()->second.worker : incarnation, loss.why, now_ms);\n",
        ),
        (
            "kOthersName",
            "  auto at = jobs_.find(name);\n",
            "  auto at = jobs_.find(name);\n"
            "  for (auto of = jobs_.begin(); BUG && of != jobs_.end(); ++of) {\n"
            "    if (name.starts_with(of->first)) at = of;\n"
            "  }\n",
        ),
        (
            "kOthersId",
            "last_id_ = last_id_.next();",
            "last_id_ = BUG && !jobs_.empty() && jobs_.begin()->second.record().job.value != 0\n"
            "                   ? jobs_.begin()->second.record().job\n"
            "                   : last_id_.next();\n"
            "    if (BUG) break;",
        ),
        (
            "kHastyDrain",
            "job.needs_server(server->hello.shard.value);\n      return member",
            "(BUG ? job.servers() != 0 && (job.in_view() || job.owes_checkpoint())\n"
            "                                 : job.needs_server(server->hello.shard.value));\n      return member",
        ),
    ],
    "coordinated_job_open.cc": [
        (
            "kUnrecordedView",
            "    gathering.start = std::move(*start);  // and on in saved()\n",
            "    if (BUG) ledger_.keeper.view_saved(true, true);\n"
            "    if (BUG) return begin_opening(std::move(*start), now_ms);\n"
            "    gathering.start = std::move(*start);\n",
        ),
    ],
    "running_view.cc": [
        (
            "kUnrecordedCommit",
            "  ledger_.commit(round, false, now_ms);\n",
            "  ledger_.commit(round, false, now_ms);\n  if (BUG) ledger_.tell_commit(view.members, now_ms);\n",
        ),
    ],
    "coordinated_job_kept.cc": [
        ("kKeptUnsaved", "  between->going = who;\n", "  if (!BUG) between->going = who;\n"),
    ],
    "held_states.cc": [
        (
            "kHeldOfAnother",
            "  anew = std::exchange(held->second.node, node) != node || anew;\n",
            "  anew = (std::exchange(held->second.node, node) != node && !BUG) || anew;\n",
        ),
        (
            "kHeldOfAnother",
            "held->second.node != join.node) return",
            "(held->second.node != join.node && !BUG)) return",
        ),
    ],
    "snapshot_copies.cc": [
        (
            "kCopyUnawaited",
            "    return asked(snapshot, shard, *holder) &&",
            "    if (BUG) return true;\n    return asked(snapshot, shard, *holder) &&",
        ),
    ],
    "snapshot_fetches.cc": [
        ("kFailedCopy", "reply(*it.order, status, it", "reply(*it.order, BUG ? Status() : status, it"),
        (
            "kOwnForCopy",
            "store_->has(m.job, m.round, m.shard)",
            "store_->has(m.job, m.round, BUG ? own_ : m.shard)",
        ),
    ],
    "client_core.cc": [
        ("kForgottenOverdue", "      output_.send(chunk, Query{", "      if (!BUG) output_.send(chunk, Query{"),
        ("kOtherWeight", "    push.weight = kept->weight;", "    push.weight = kept->weight + (BUG ? 1 : 0);"),
        ("kForgottenSettings", "    said = kept->settings;", "    said = BUG ? SaidSettings() : kept->settings;"),
    ],
    "state_home.cc": [
        (
            "kOwnPartsAlone",
            "context_.peers.snapshots_or_copies(shard, record.job);",
            "BUG ? context_.peers.snapshots(shard, record.job)\n"
            "                                        : context_.peers.snapshots_or_copies(shard, record.job);",
        ),
        (
            "kForgottenRound",
            "  if (checkpoint.value == 0 && known.value != 0) {",
            "  if (checkpoint.value == 0 && known.value != 0 && !BUG) {",
        ),
        (
            "kNodeZeroOnly",
            "  const Round checkpoint = newest->second.",
            "  const Round checkpoint = (BUG ? members.begin() : newest)->second.",
        ),
    ],
    "replica_checkpoints.cc": [
        ("kForgottenStep", "  steps[chunk.value] = state.step;", "  steps[chunk.value] = BUG ? 0 : state.step;"),
    ],
    "coordinated_job_servers.cc": [
        (
            "kPartsAlone",
            "!ledger_.context.parts.holders().copies_of(record().job, ledger_.keeper_of_parts());",
            "(BUG || !ledger_.context.parts.holders().copies_of(record().job, ledger_.keeper_of_parts()));",
        ),
    ],
    "lane_job.cc": [
        (
            "kForgottenDecision",
            "job_->spec().redo.get()) ring->note",
            "job_->spec().redo.get(); ring && !BUG) ring->note",
        ),
        (
            "kDroppedResidual",
            "  reducer_->restore_residual(chunk, values);",
            "  if (!BUG) reducer_->restore_residual(chunk, values);",
        ),
        (
            "kForgottenRedo",
            "spec.redo_after[chunks.servers()[chunk.connection.value].shard.value]);",
            "BUG ? client.start() : spec.redo_after[chunks.servers()[chunk.connection.value].shard.value]);",
        ),
        (
            "kUncopied",
            "here(job_->parameters() + chunk.range.begin,",
            "here((BUG ? earlier_->parameters() : job_->parameters()) + chunk.range.begin,",
        ),
    ],
}


def main(source: str, copy: str) -> int:
    text = pathlib.Path(source).read_text(encoding="utf-8")
    for name, line, bug in BUGS[pathlib.Path(source).name]:
        if text.count(line) != 1:
            print(
                f"plant.py: {source} has {text.count(line)} times, instead of once, what bug {name} replaces:\n{line}",
                file=sys.stderr,
            )
            return 1
        text = text.replace(line, bug.replace("BUG", f"sim::planted(sim::Mutation::{name})"))
    first = text.index("#include")
    text = text[:first] + '#include "tests/sim/planted.h"\n' + text[first:]
    pathlib.Path(copy).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
