#include "common/security/token_proof.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "common/security/data_tokens.h"

namespace tributary {
namespace {

constexpr std::string_view kProof = "Proof ";

const std::uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

}  // namespace

std::string token_proof_of(std::string_view token, const ProvedRequest& request, std::uint64_t now_ms,
                           std::uint64_t number) {
  std::array<std::uint8_t, crypto_generichash_BYTES> key{}, proof{};
  crypto_generichash(key.data(), key.size(), bytes_of(token), token.size(), nullptr, 0);
  const std::string when = std::to_string(now_ms) + " " + std::to_string(number);
  // Neither a method nor a target has spaces.
  const std::string text = "tributary order 1 " + when + " " + std::string(request.method) + " " +
                           std::string(request.target) + " " + std::string(request.body);
  crypto_generichash(proof.data(), proof.size(), bytes_of(text), text.size(), key.data(), key.size());
  std::array<char, 2 * crypto_generichash_BYTES + 1> digits{};
  sodium_bin2hex(digits.data(), digits.size(), proof.data(), proof.size());
  return std::string(kProof) + when + " " + digits.data();
}

bool TokenProofs::is_one(std::string_view authorization) {
  return authorization.starts_with(kProof);
}

Status TokenProofs::take(std::string_view token, std::string_view shown, const ProvedRequest& request,
                         std::uint64_t now_ms) {
  const auto refused = [](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); };
  std::uint64_t time = 0, number = 0;
  const char* at = shown.data() + std::min(shown.size(), kProof.size());
  const char* const end = shown.data() + shown.size();
  const auto next = [&](std::uint64_t& into) {
    const auto [after, error] = std::from_chars(at, end, into);
    const bool good = error == std::errc() && after != end && *after == ' ';
    at = good ? after + 1 : end;
    return good;
  };
  if (!next(time) || !next(number)) return refused("the proof of the token has no time and number");
  if (!same_proof(token_proof_of(token, request, time, number), shown)) {
    return refused("the token is wrong; [security] admin_token names the file that has it");
  }
  const std::uint64_t apart = time > now_ms ? time - now_ms : now_ms - time;
  if (apart > kClocksMs || time < since_ms_) {
    return refused("the request was made " + std::to_string(apart / 1000) + " s " +
                   (time > now_ms ? "after" : "before") + " this machine's time" +
                   (apart > kClocksMs ? "; set the clocks of both" : ", and this daemon began later; try again"));
  }
  std::erase_if(taken_, [now_ms](const auto& entry) { return entry.second < now_ms; });
  if (taken_.size() >= kMax) return refused("too many requests; try again in a minute");
  if (!taken_.emplace(shown, time + kClocksMs).second) return refused("the proof of the token was shown before");
  return {};
}

}  // namespace tributary
