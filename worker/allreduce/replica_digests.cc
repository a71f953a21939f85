#include "worker/allreduce/replica_digests.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/checksum.h"

namespace tributary {

ReplicaDigests::ReplicaDigests(std::size_t chunks, std::uint32_t nodes)
    : period_(nodes > 1 ? std::max<std::uint64_t>(chunks, kRounds) : 0), taken_(chunks, 0) {}

bool ReplicaDigests::due(ChunkIndex chunk, Round round) const {
  return period_ != 0 && round.value % period_ == chunk.value;
}

void ReplicaDigests::take(ChunkIndex chunk, std::span<const float> parameters, std::span<const float* const> slots,
                          std::uint64_t step) {
  Checksum64 checksum;
  checksum.add(parameters.data(), parameters.size_bytes());
  for (const float* slot : slots) checksum.add(slot, parameters.size_bytes());
  taken_[chunk.value] = checksum.add(&step, sizeof step).value();
}

std::uint64_t ReplicaDigests::bring(ChunkIndex chunk) {
  return std::exchange(taken_[chunk.value], 0);
}

Error ReplicaDigests::difference(Round round) const {
  const std::uint64_t after = round.value - 1;
  std::string text = "after round " + std::to_string(after) +
                     " the nodes hold different parameters or optimizer state, though they added up the same "
                     "gradients: memory or a machine is at fault, or a process wrote to shared memory; ";
  text += after > period_ ? "this part was the same after round " + std::to_string(after - period_)
                          : "this part had not been compared before";
  return {ErrorCode::kInternal,
          text +
              ". Look for the machine (memory test, kernel log), remove younger checkpoints from allreduce/ below "
              "the [store] paths of nodes 0 and 1, and start again"};
}

}  // namespace tributary
