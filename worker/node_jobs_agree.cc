// How the nodes of an all-reduce job agree on where it is added up (node_jobs.h has the rules).
#include <algorithm>
#include <map>

#include "worker/node_jobs.h"

namespace tributary {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// An offer is NCCL's version and then the devices of the node's ranks, a line each.
std::vector<std::string> lines_of(const std::string& offer) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= offer.size();) {
    const std::size_t end = std::min(offer.find('\n', at), offer.size());
    lines.push_back(offer.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Why `offers` (by node; empty: in host memory) do not make one job over devices; empty: they do. Whichever node asks,
// of the same offers, hears of something or of nothing.
std::string difference(const std::map<std::uint32_t, std::string>& offers) {
  std::map<std::string, std::uint32_t> taken;  // devices
  std::string version;
  for (const auto& [node, offer] : offers) {
    const std::string who = "node " + std::to_string(node);
    if (offer.empty()) return who + " adds up in host memory (its log says why)";
    const std::vector<std::string> lines = lines_of(offer);
    if (version.empty()) version = lines[0];
    if (lines[0] != version) return who + " has " + lines[0] + ", others have " + version;
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const auto [at, first] = taken.emplace(lines[i], node);
      if (!first) {
        return who + " has a rank on " + lines[i] + ", and so has node " + std::to_string(at->second) +
               ": NCCL takes one rank a device";
      }
    }
  }
  return {};
}

}  // namespace

Status NodeJobs::agree(Entry& entry, const JobWelcome& m, std::uint64_t now_ms) {
  std::string why;
  auto devices = options_.devices->open_allreduce(*entry.view, m.node, entry.devices(), why);
  if (!devices) return tl::unexpected(devices.error());
  if (!*devices || m.nodes == 1) return run(entry, m, std::move(*devices), why, now_ms);
  entry.phase = Phase::kAgreeing;
  entry.agreement.emplace();
  Entry::Agreement& agreement = *entry.agreement;
  agreement.welcome = m;
  agreement.devices = std::move(*devices);
  std::string offer = options_.devices->collectives_number();
  for (const std::string& uuid : entry.devices()) offer += "\n" + uuid;
  agreement.offers.emplace(m.node.value, offer);
  agreement.until_ms = now_ms + options_.devices->patience_ms();
  coordinator_.send(PeerAddress{m.job, m.view, m.node, kOfferKey, bytes_of(offer)});
  return {};
}

void NodeJobs::offered(Entry& entry, const PeerAddress& m, std::uint64_t now_ms) {
  if (m.key != kOfferKey) lanes_.peer_address(m);
  if (!entry.agreement || (m.key != kOfferKey && m.key != kHostKey)) return;
  Entry::Agreement& agreement = *entry.agreement;
  if (m.node.value >= agreement.welcome.nodes || m.node == agreement.welcome.node) return;
  agreement.offers.emplace(m.node.value, m.key == kOfferKey ? text_of(m.value) : std::string());
  const std::string why = difference(agreement.offers);
  if (why.empty() && agreement.offers.size() < agreement.welcome.nodes) return;
  const Entry::Agreement agreed = std::move(*entry.agreement);
  entry.agreement.reset();
  Status status;
  if (!why.empty() && options_.devices->required()) {
    status = fail(ErrorCode::kUnavailable, job_in_words(entry.name()) + " cannot be added up on devices: " + why +
                                               " (this worker has [worker] node_reduction = \"device\")");
  } else {
    status = run(entry, agreed.welcome, why.empty() ? agreed.devices : nullptr, why, now_ms);
  }
  begun(entry, agreed.welcome, status);
  if (status && agreed.stop_requested) entry.job->set_state(RegionState::kStopRequested);
}

// The view is over before it began here.
void NodeJobs::join_again(Entry& entry, std::uint64_t when_ms) {
  entry.agreement.reset();
  entry.phase = Phase::kJoining;
  entry.next_ms = when_ms;
}

void NodeJobs::tick_agreeing(Entry& entry, std::uint64_t now_ms) {
  if (now_ms < entry.agreement->until_ms) return;
  std::string who;
  for (std::uint32_t node = 0; node < entry.agreement->welcome.nodes; ++node) {
    if (entry.agreement->offers.contains(node)) continue;
    who += (who.empty() ? "node " : ", ") + std::to_string(node);
  }
  const JobWelcome welcome = entry.agreement->welcome;
  begun(entry, welcome,
        fail(ErrorCode::kTimeout, who + " of " + job_in_words(entry.name()) + " did not say within " +
                                      std::to_string(options_.devices->patience_ms()) +
                                      " ms whether it adds up on devices ([device] collective_timeout_ms in "
                                      "worker.toml); do all workers have the same release?"));
}

}  // namespace tributary
