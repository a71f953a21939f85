// AdminGuard: which requests the admin port answers (docs/security.md). Pure.
//
// A port on loopback is not private: a web page can make a browser send requests to it, under a name of the page's own
// that is bound to 127.0.0.1 again (DNS rebinding). So a request's host must be known, a page's origin must be the
// port's own, and an order needs a token, which no page has: the token itself, or a proof of it (token_proof.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/security/token_proof.h"

namespace tributary {

struct AdminPolicy {
  std::string token;               // of orders; "": there is none, and no order is taken
  bool reads_need_token = false;   // other machines reach the port, and there is a token
  std::vector<std::string> hosts;  // names that requests may use, besides localhost and numbers; without ports
};

struct AdminRequest {
  bool order = false;                                      // it changes something
  std::optional<std::string> host, origin, authorization;  // its header fields
  bool health = false;                                     // it only checks whether the daemon lives
  ProvedRequest proved = {};                               // a proof of the token is about it
  std::uint64_t now_ms = 0;                                // time of day
};

struct AdminDenial {
  unsigned status = 403;
  std::string why;
};

class AdminGuard {
 public:
  // now_ms: of the day.
  explicit AdminGuard(AdminPolicy policy, std::uint64_t now_ms = 0) : policy_(std::move(policy)), proofs_(now_ms) {}
  // Returns why the request is denied; none: it is answered.
  std::optional<AdminDenial> denies(const AdminRequest& request);

 private:
  bool known(std::string_view host) const;
  const AdminPolicy policy_;
  TokenProofs proofs_;
};

// Returns the policy of a daemon whose admin port is at `address`. names: further names of the port.
AdminPolicy admin_policy(const std::string& address, const std::string& token, const std::vector<std::string>& names);

// Compares two secrets in a time that does not depend on the difference.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace tributary
