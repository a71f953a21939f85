#include "tests/sim/judge/rounds_judge.h"

#include <algorithm>

namespace tributary::sim {

RoundsJudge::RoundsJudge(const JudgeSetup& setup, Broken broken)
    : SyncJudge(std::move(broken)), setup_(setup), reference_(setup) {}

void RoundsJudge::delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) {
  if (!same_bits(params, visible(chunk, version.value))) {
    broken("node " + std::to_string(node) + " chunk " + std::to_string(chunk.value) + " version " +
           std::to_string(version.value) + ": parameters are not the reference's");
  }
}

void RoundsJudge::snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) {
  const std::uint64_t version = snapshot.state.version.value;
  const std::string of_chunk = "snapshot of chunk " + std::to_string(snapshot.chunk.value);
  if (!same_bits(params, master(snapshot.chunk, version)) || snapshot.state.step != reference_.step(version) ||
      snapshot.round.value != version) {
    broken(of_chunk + " is not the reference's round " + std::to_string(snapshot.round.value));
  }
  for (const NodeResidual& held : snapshot.state.residuals) {
    const auto expected = part(reference_.residual(version, held.node), *setup_.layout, snapshot.chunk);
    if (!std::ranges::equal(held.bytes(), std::as_bytes(expected))) {
      broken("the residual of node " + std::to_string(held.node) + " in the " + of_chunk + " is not the reference's");
    }
  }
  const TensorSpec& tensor = setup_.layout->tensors()[setup_.layout->tensors_of(snapshot.chunk).first];
  const std::size_t holders = setup_.model_ranks.nodes_with(tensor, setup_.nodes).size();
  const std::size_t expected = make_encoding(setup_.push)->keeps_residual() ? holders : 0;
  if (snapshot.state.residuals.size() != expected) broken("a snapshot has not every node's residual");
  if (make_encoding(setup_.pull)->is_delta() &&
      !same_bits(snapshot.state.estimate.floats(), visible(snapshot.chunk, version))) {
    broken("the estimate in a snapshot is not what the nodes see");
  }
}

}  // namespace tributary::sim
