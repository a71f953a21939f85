// A client's proof to an admin port that it has the token, so that the token crosses no network: the time, a number
// that no other request has, and a keyed digest of these and the request. An eavesdropper can neither change the
// request nor send it again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

struct ProvedRequest {
  std::string_view method, target, body;
};

// "Proof TIME NUMBER DIGITS", for the header Authorization. now_ms: of the day. number: a random one.
std::string token_proof_of(std::string_view token, const ProvedRequest& request, std::uint64_t now_ms,
                           std::uint64_t number);

// Proofs that one port has received. Thread rule: one thread.
class TokenProofs {
 public:
  static constexpr std::uint64_t kClocksMs = 60'000;  // by which clocks of two machines may differ
  static constexpr std::size_t kMax = 65536;          // in twice that time

  // since_ms: when the port began; earlier proofs, perhaps used at another port, are invalid.
  explicit TokenProofs(std::uint64_t since_ms) : since_ms_(since_ms) {}

  static bool is_one(std::string_view authorization);
  // Accepts each proof once. kInvalidArgument, in words for the client.
  Status take(std::string_view token, std::string_view shown, const ProvedRequest& request, std::uint64_t now_ms);

 private:
  const std::uint64_t since_ms_;
  std::map<std::string, std::uint64_t, std::less<>> taken_;  // until when they must be remembered
};

}  // namespace tributary
