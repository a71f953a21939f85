#include "common/security/data_tokens.h"

#include <sodium.h>
#include <zmq.h>

#include <array>
#include <charconv>

namespace tributary {
namespace {

constexpr std::size_t kKeyBytes = 32;
using Key = std::array<std::uint8_t, kKeyBytes>;
static_assert(kKeyBytes == crypto_box_PUBLICKEYBYTES && kKeyBytes == crypto_box_BEFORENMBYTES &&
              kKeyBytes == crypto_generichash_BYTES);

Result<Key> decoded(const std::string& text) {
  Key key{};
  if (!is_key(text) || !zmq_z85_decode(key.data(), text.c_str()))
    return fail(ErrorCode::kInvalidArgument, "'" + text + "' is no key");
  return key;
}

}  // namespace

std::string token_name(const DataToken& token) {
  return std::to_string(token.job.value) + " " + std::to_string(token.view.value) + " " +
         std::to_string(token.node.value) + " " + std::to_string(token.use);
}

Result<DataToken> token_named(std::string_view name, ShardIndex shard, LaneIndex lane) {
  DataToken token{.job = {}, .view = {}, .node = {}, .shard = shard, .lane = lane};
  const char* at = name.data();
  const char* const end = at + name.size();
  bool good = name.size() <= kMaxTokenName;
  const auto number = [&](auto& into, char before) {
    if (before != 0) good = good && at != end && *at++ == before;
    if (!good) return;
    const auto [after, error] = std::from_chars(at, end, into);
    good = error == std::errc();
    at = after;
  };
  number(token.job.value, 0);
  number(token.view.value, ' ');
  number(token.node.value, ' ');
  number(token.use, ' ');
  if (!good || at != end) return fail(ErrorCode::kMalformed, "it shows no token");
  return token;
}

Result<std::string> token_proof(const DataToken& token, const KeyPair& own, const std::string& peer_key) {
  const auto secret = decoded(own.secret), peer = decoded(peer_key);
  if (!secret) return fail(ErrorCode::kInvalidArgument, "this daemon's pair has no secret key");
  if (!peer) return tl::unexpected(peer.error());
  Key shared{};
  if (crypto_box_beforenm(shared.data(), peer->data(), secret->data()) != 0)
    return fail(ErrorCode::kInvalidArgument, "'" + peer_key + "' is no key that anything can be agreed on with");
  const std::string text = "tributary data token 1 " + std::to_string(token.shard.value) + " " +
                           std::to_string(token.lane.value) + " " + token_name(token);
  Key proof{};
  crypto_generichash(proof.data(), proof.size(), reinterpret_cast<const std::uint8_t*>(text.data()), text.size(),
                     shared.data(), shared.size());
  std::array<char, 2 * kKeyBytes + 1> digits{};
  sodium_bin2hex(digits.data(), digits.size(), proof.data(), proof.size());
  return std::string(digits.data());
}

bool same_proof(std::string_view one, std::string_view other) {
  return one.size() == other.size() && sodium_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace tributary
