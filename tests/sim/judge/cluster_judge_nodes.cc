// Judges the nodes' actions and results.
#include <algorithm>
#include <cstring>

#include "common/base/checksum.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/judge/cluster_judge.h"
#include "tests/sim/random.h"

namespace tributary::sim {

void ClusterJudge::made(std::uint32_t node, ChunkIndex chunk, Round round, std::uint64_t weight,
                        std::span<const std::byte> frame) {
  made_.emplace(node, chunk.value, round.value,
                Checksum64().add(&weight, sizeof weight).add(frame.data(), frame.size()).value());
}

std::vector<std::byte> ClusterJudge::state_of(std::uint32_t rank, Round round, ViewId view) {
  const std::uint64_t words[] = {rank, round.value, view.value};
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

void ClusterJudge::begins(const NodeJobSpec& spec, std::uint32_t rank, std::span<const std::byte> state, bool own) {
  const std::string who = in_words("rank", rank) + " begins at " + in_words("round", spec.view->start.value);
  if (state.empty()) {
    // A rank's state is committed with the snapshot, unless it was lost on the way.
    if (scenario_.gentle && synchronous() && any_commit_ && spec.view->start == committed_ &&
        given_.contains({rank, spec.view->start.value})) {
      broken_(who + " without the state that it gave for the snapshot of that round");
    }
    return;
  }
  ++outcome_.states;
  std::uint64_t words[3] = {};
  if (state.size() == sizeof words) std::memcpy(words, state.data(), sizeof words);
  if (words[0] != rank || words[1] != spec.view->start.value) {
    return broken_(who + " with the state of " + in_words("rank", words[0]) + " after " + in_words("round", words[1]));
  }
  if (own || spec.view->start != committed_ || made_up_.contains({rank, words[1]})) return;
  // The round may have been gone through more than once: it is the snapshot's.
  for (const Disk& disk : disks_) {
    for (const Disk::Snapshot* part : disk.parts(spec.view->job, spec.view->start)) {
      if (part->view.value < words[2]) {
        broken_(who + " with the state that it kept in " + in_words("view", words[2]) + ", but the snapshot is of " +
                in_words("view", part->view.value));
      }
    }
  }
}

// Mostly small, now and then of several pieces, which take time to make; some ranks keep the same as others.
std::vector<std::byte> ClusterJudge::large_of(std::uint32_t rank, Round round) {
  const std::uint64_t author = rank % 4 >= 2 ? 2 : rank;
  Random random(author * 1'000'003 + round.value);
  const bool several = random.chance(0.04);
  std::vector<std::byte> bytes(several ? 2 * kPartBytes + random.below(kPartBytes) : 1 + random.below(5000));
  std::uint64_t word = random.next();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof word) {
    word = word * 6364136223846793005ull + 1;
    const std::uint64_t mixed = word ^ word >> 32;
    std::memcpy(bytes.data() + at, &mixed, std::min(sizeof mixed, bytes.size() - at));
  }
  return bytes;
}

void ClusterJudge::gets_large(const NodeJobSpec& spec, std::uint32_t rank, std::span<const std::byte> body,
                              const std::vector<std::byte>* large) {
  const std::string who = in_words("rank", rank) + " begins at " + in_words("round", spec.view->start.value);
  std::uint64_t words[3] = {};
  if (body.size() != sizeof words) return broken_(who + " with a state of another size");
  std::memcpy(words, body.data(), sizeof words);
  if (!large) return;
  ++outcome_.large_parts;
  if (*large != large_of(static_cast<std::uint32_t>(words[0]), Round(words[1]))) {
    broken_(who + " with another large part than " + in_words("rank", words[0]) + " kept after " +
            in_words("round", words[1]));
  }
}

void ClusterJudge::gets_first(const NodeJobSpec& spec, std::uint32_t rank, std::span<const std::byte> state,
                              const std::vector<std::byte>* large) {
  const std::string who = in_words("rank", rank) + " begins at " + in_words("round", spec.view->start.value);
  const std::span<const std::byte> body = StateHead::body(state);
  std::uint64_t words[3] = {};
  if (body.size() == sizeof words) std::memcpy(words, body.data(), sizeof words);
  if (!StateHead::of(state).whole) broken_(who + " with a first state that is not whole");
  if (words[1] != spec.view->start.value) {
    broken_(who + " with what the first rank kept after " + in_words("round", words[1]));
  }
  ++outcome_.first_states;
  gets_large(spec, rank, body, large);
}

void ClusterJudge::delivered(std::uint32_t who, const NodeJobSpec& spec, ChunkIndex chunk, Version version,
                             std::span<const float> params) {
  if (replicas_) return replicas_->delivered(spec, chunk, version, params);
  View* of = view(spec.view->job, spec.view->view);
  if (!of) return broken_("a node runs in a view that never opened");
  const std::uint32_t node = spec.node.value;
  if (node >= of->nodes.size() || of->nodes[node] != who) {
    broken_(in_words("node", who) + " takes part in " + in_words("view", spec.view->view.value) +
            ", which has other nodes");
  }
  const auto [at, first] = of->at.try_emplace({node, chunk.value}, version.value);
  const std::string where = in_words("node", node) + " " + in_words("chunk", chunk.value);
  if (first ? version.value != spec.view->start.value : version.value != at->second + 1) {
    broken_(where + " got " + in_words("version", version.value) + " after " + std::to_string(at->second) +
            " in a view that began at " + std::to_string(spec.view->start.value));
  }
  at->second = version.value;
  if (version.value > spec.view->start.value) ++deliveries_;
  of->judge().delivered(node, chunk, version, params);
}

void ClusterJudge::trained(std::uint32_t node, std::uint32_t local_rank, const NodeJobSpec& spec,
                           std::span<const float> params) {
  if (replicas_) return replicas_->trained(params);
  View* of = view(spec.view->job, spec.view->view);
  if (!of || !of->sync) return;
  const Layout& mine = *spec.view->layout;
  const std::span<const std::uint32_t> parts = spec.model_ranks();
  for (std::uint32_t c = 0; c < mine.chunks(); ++c) {
    if (!spec.view->tensor_in(ChunkIndex(c)).held_at(parts, local_rank)) continue;
    const ChunkIndex chunk = mine.in_whole(ChunkIndex(c));
    const ChunkRange range = mine.chunk(ChunkIndex(c));
    if (!same_bits(params.subspan(range.begin, range.elements), of->sync->visible(chunk, scenario_.rounds))) {
      return broken_(in_words("node", node) + " ends with other parameters than the reference's");
    }
  }
}

}  // namespace tributary::sim
