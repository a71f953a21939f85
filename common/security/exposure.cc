#include "common/security/exposure.h"

#include "common/base/host_port.h"

namespace tributary {

bool stays_on_machine(std::string_view address) {
  if (address.empty() || address.starts_with("ipc://") || address.starts_with("inproc://")) return true;
  const std::string_view host = host_port(address).host;
  if (host == "localhost" || host == "::1") return true;
  // 127.0.0.0/8, written out.
  if (!host.starts_with("127.")) return false;
  return host.find_first_not_of("0123456789.") == std::string_view::npos;
}

Status check_exposure(std::span<const Listening> listening, bool keys, bool insecure) {
  if (keys || insecure) return {};
  for (const Listening& at : listening) {
    if (stays_on_machine(at.address)) continue;
    return fail(
        ErrorCode::kConfig,
        at.key + " = \"" + at.address +
            "\" is not on this machine alone, and there are no keys: whoever is in the network could read "
            "and change every job. Either give keys (`tributary keys init`, then [security] keys); or listen on "
            "this machine only (" +
            at.key + " = \"" + at.instead +
            "\"); or, in a network where everybody is trusted, say so ([security] "
            "insecure = true)");
  }
  return {};
}

}  // namespace tributary
