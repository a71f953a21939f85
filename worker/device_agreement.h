// DeviceAgreement: the device offers of an all-reduce view's nodes, until all nodes know where the sum is computed.
// Gradients are either on devices or in shared memory, on all nodes alike, and trainers must know which. So nodes that
// can sum on devices send each other offers (as PeerAddress, with their NCCL) and wait. A node that cannot continues at
// once, and its Gloo address informs the others. Pure. A job that is agreeing owns it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

class DeviceAgreement {
 public:
  // This node offers its ranks' devices. collectives: NodeDevices::collectives_number().
  DeviceAgreement(const JobWelcome& welcome, const std::string& collectives, std::span<const std::string> devices);

  PeerAddress offer() const;  // this node's, for the others
  // Takes a node's offer; the first one counts. Returns whether it is news.
  bool hear(const PeerAddress& m);
  // Returns why these offers do not make one job over devices; empty: they do. The same offers give the same verdict on
  // every node.
  std::string conflict() const;
  bool complete() const { return offers_.size() == nodes_; }
  std::string missing() const;  // which nodes have sent nothing

 private:
  JobId job_;
  ViewId view_;
  NodeRank node_;
  std::uint32_t nodes_;
  // By node: its NCCL's version, and then the devices of its ranks. Empty: it adds up in host memory.
  std::map<std::uint32_t, std::vector<std::string>> offers_;
};

}  // namespace tributary
