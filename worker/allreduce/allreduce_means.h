// AllreduceMeans: what the lane of all-reduce jobs gives its jobs. Thread rule: any thread.
#pragma once

#include <cstdint>

#include "common/config/config.h"
#include "common/wire/messages.h"
#include "worker/node/node_lane.h"

namespace tributary {

// PeerAddress::key of such jobs.
inline constexpr char kHostKey[] = "gloo";     // an address of a node that adds up in host memory
inline constexpr char kDevicesKey[] = "nccl";  // of one that does it on devices
inline constexpr char kOfferKey[] = "offer";   // to do that; not for the lane (worker/device_agreement.h)

// The way to the coordinator, which forwards the message to the view's other workers.
class AllreducePort {
 public:
  virtual ~AllreducePort() = default;
  virtual void publish(const PeerAddress& address) = 0;  // on the lane's threads
  // Node 0 reports, once after a clean close(), whether the view's last state was written. round: of the checkpoint on
  // its disk (0: this worker writes none).
  virtual void checkpointed(const SnapshotDone& done) = 0;  // on the lane's threads
};

// All nodes have the same state; so many of them write it, that a disk may be lost.
inline constexpr std::uint32_t kCheckpointNodes = 2;
constexpr bool keeps_checkpoints(NodeRank node) {
  return node.value < kCheckpointNodes;
}
// How long a node that leaves waits for its neighbours.
inline constexpr std::uint64_t kPartingPatienceMs = 20'000;

struct AllreduceMeans {
  NodeLane& lane;
  const WorkerConfig config;
  const std::uint16_t streams;  // collectives under way at a time; 0: the default
  AllreducePort& port;
};

}  // namespace tributary
