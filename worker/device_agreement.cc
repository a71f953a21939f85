#include "worker/device_agreement.h"

#include <sstream>

#include "worker/allreduce/allreduce_lane.h"

namespace tributary {

DeviceAgreement::DeviceAgreement(const JobWelcome& welcome, const std::string& collectives,
                                 std::span<const std::string> devices)
    : job_(welcome.job), view_(welcome.view), node_(welcome.node), nodes_(welcome.nodes) {
  std::vector<std::string>& mine = offers_[node_.value] = {collectives};
  mine.insert(mine.end(), devices.begin(), devices.end());
}

// A line each.
PeerAddress DeviceAgreement::offer() const {
  std::string text;
  for (const std::string& line : offers_.at(node_.value)) text += (text.empty() ? "" : "\n") + line;
  const auto bytes = std::as_bytes(std::span(text));
  return {job_, view_, node_, kOfferKey, {bytes.begin(), bytes.end()}, true};
}

bool DeviceAgreement::hear(const PeerAddress& m) {
  const bool offers = m.key == kOfferKey;
  if ((!offers && m.key != kHostKey) || m.node.value >= nodes_) return false;
  const auto [at, first] = offers_.try_emplace(m.node.value);
  if (!first) return false;
  std::istringstream text({reinterpret_cast<const char*>(m.value.data()), offers ? m.value.size() : 0});
  for (std::string line; std::getline(text, line);) at->second.push_back(line);
  return true;
}

std::string DeviceAgreement::conflict() const {
  std::map<std::string, std::uint32_t> taken;  // devices
  std::string version;
  for (const auto& [node, offer] : offers_) {
    const std::string who = "node " + std::to_string(node);
    if (offer.empty()) return who + " adds up in host memory (its log says why)";
    if (version.empty()) version = offer[0];
    if (offer[0] != version) return who + " has " + offer[0] + ", others have " + version;
    for (std::size_t i = 1; i < offer.size(); ++i) {
      const auto [at, first] = taken.emplace(offer[i], node);
      if (first) continue;
      return who + " has a rank on " + offer[i] + ", and so has node " + std::to_string(at->second) +
             ": NCCL takes one rank a device";
    }
  }
  return {};
}

std::string DeviceAgreement::missing() const {
  std::string who;
  for (std::uint32_t node = 0; node < nodes_; ++node) {
    if (!offers_.contains(node)) who += (who.empty() ? "node " : ", ") + std::to_string(node);
  }
  return who;
}

}  // namespace tributary
