// Measures a worker's links to servers for a diagnosis (docs/doctor.md): sends pushes of no job, which lanes return
// unchanged, over the connections that gradients would take. Thread rule: any; it blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/doctor/machine_facts.h"
#include "common/security/keys.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

struct MeasuredLinks {
  std::vector<LinkRate> rates;
  std::vector<Check> checks;  // a line for each server, in the section "links"
};
struct MeasuredFrom {
  std::shared_ptr<const KeyPair> own;        // null: there are no keys
  std::string host;                          // of this machine (common/system/host_identity.h)
  std::vector<NetworkInterface> interfaces;  // whose cards' rates are compared
};
// One server after the other, a second and a half each, and kSilenceMs where nothing comes back.
inline constexpr std::uint64_t kSilenceMs = 5000;
MeasuredLinks measure_links(const Diagnose& order, const MeasuredFrom& from, const std::atomic<bool>& stopping);

}  // namespace tributary
