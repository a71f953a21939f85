#include "common/daemon/admin_guard.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "common/security/exposure.h"

namespace tributary {
namespace {

std::string lower(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  return small;
}

// "HOST:PORT", "[::1]:PORT" or "HOST" without its port.
std::string_view host_of(std::string_view field) {
  if (field.starts_with('[')) return field.substr(0, field.find(']') + 1);
  return field.substr(0, field.find(':'));
}

bool is_number(std::string_view host) {
  std::string text(host);
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  in6_addr any{};
  return ::inet_pton(AF_INET, text.c_str(), &any) == 1 || ::inet_pton(AF_INET6, text.c_str(), &any) == 1;
}

}  // namespace

AdminPolicy admin_policy(const std::string& address, const std::string& token, const std::vector<std::string>& names) {
  AdminPolicy policy{token, !token.empty() && !stays_on_machine(address), {std::string(host_of(address))}};
  char own[256] = {};
  if (::gethostname(own, sizeof own - 1) == 0 && own[0] != '\0') policy.hosts.emplace_back(own);
  policy.hosts.insert(policy.hosts.end(), names.begin(), names.end());
  return policy;
}

bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

// Returns whether the port may be reached by `host`. A number is no name, so no page can have bound it again.
bool AdminGuard::known(std::string_view host) const {
  const std::string name = lower(host);
  return name == "localhost" || is_number(name) ||
         std::ranges::any_of(policy_.hosts, [&](const std::string& own) { return lower(own) == name; });
}

std::optional<AdminDenial> AdminGuard::denies(const AdminRequest& request) {
  if (!request.host || !known(host_of(*request.host))) {
    return AdminDenial{403, "this port is not known as \"" + request.host.value_or("") +
                                "\"; ask it by its address, or add the name to [security] admin_hosts"};
  }
  if (request.origin && lower(*request.origin) != "http://" + lower(*request.host)) {
    return AdminDenial{403, "a page of " + *request.origin + " may not ask this port"};
  }
  if (!request.order && (!policy_.reads_need_token || request.health)) return std::nullopt;
  if (policy_.token.empty()) {
    return AdminDenial{403,
                       "orders need a token, and this daemon has none: set [security] admin_token (`tributary keys "
                       "init` makes one)"};
  }
  constexpr std::string_view kBearer = "Bearer ";
  const std::string given = request.authorization.value_or("");
  if (TokenProofs::is_one(given)) {
    const Status taken = proofs_.take(policy_.token, given, request.proved, request.now_ms);
    return taken ? std::nullopt : std::optional(AdminDenial{401, taken.error().message});
  }
  if (std::string_view(given).starts_with(kBearer) && same_secret(policy_.token, given.substr(kBearer.size()))) {
    return std::nullopt;
  }
  return AdminDenial{401, given.empty()
                              ? "this needs the header \"Authorization: Bearer TOKEN\"; [security] admin_token "
                                "names the file that has it"
                              : "the token is wrong; [security] admin_token names the file that has it"};
}

}  // namespace tributary
