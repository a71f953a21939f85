// DeviceAgreement: what the nodes of an all-reduce view offer of their devices, until it is decided where it is added
// up. Trainers must be told whether their gradients are on devices or in shared memory, and it must be the same on all
// nodes. So nodes that can add up on devices tell each other (as PeerAddress, with what they have of NCCL) and wait;
// one that cannot goes on at once, and its Gloo address tells the others. Pure. A job that is agreeing owns it.
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
  // Is it news? Of each node the first word counts.
  bool hear(const PeerAddress& m);
  // Why these offers do not make one job over devices; empty: they do. Whichever node asks, of the same offers, hears
  // of something or of nothing.
  std::string conflict() const;
  bool complete() const { return offers_.size() == nodes_; }
  std::string missing() const;  // which nodes have said nothing

 private:
  JobId job_;
  ViewId view_;
  NodeRank node_;
  std::uint32_t nodes_;
  // By node: its NCCL's version, and then the devices of its ranks. Empty: it adds up in host memory.
  std::map<std::uint32_t, std::vector<std::string>> offers_;
};

}  // namespace tributary
