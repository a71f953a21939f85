// Which requests the admin port answers.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "common/daemon/admin_guard.h"
#include "tests/unit/expect.h"

namespace tributary::testing::admin_guard_test {
namespace {

const std::string kToken(40, 't');
constexpr std::uint64_t kNow = 1'800'000'000'000;

unsigned status(AdminGuard& guard, const AdminRequest& request) {
  const auto denial = guard.denies(request);
  return denial ? denial->status : 200;
}

AdminRequest read_as(const std::string& host) {
  return {.order = false, .host = host, .origin = std::nullopt, .authorization = std::nullopt};
}

AdminRequest order_with(const std::string& authorization) {
  AdminRequest request = read_as("127.0.0.1:80");
  request.order = true;
  if (!authorization.empty()) request.authorization = authorization;
  return request;
}

}  // namespace

TEST_CASE("a name that somebody else may have bound to this machine is not answered") {
  AdminGuard guard(admin_policy("127.0.0.1:7071", "", {"metrics.example.org", "other"}));
  for (const char* host : {"127.0.0.1:7071", "localhost:7071", "LOCALHOST", "[::1]:7071", "10.0.0.7:7071", "other:1",
                           "Metrics.Example.org:7071"}) {
    CHECK_MESSAGE(status(guard, read_as(host)) == 200, host);
  }
  for (const char* host : {"evil.example.org:7071", "localhost.evil.org", "127.0.0.1.evil.org", "", "127.0.0.1evil"}) {
    CHECK_MESSAGE(status(guard, read_as(host)) == 403, host);
  }
  AdminRequest none = read_as("");
  none.host.reset();
  CHECK(status(guard, none) == 403);
}

TEST_CASE("a page of another origin is not answered, whatever it asks") {
  AdminGuard guard(admin_policy("127.0.0.1:7071", kToken, {}));
  for (const bool order : {false, true}) {
    AdminRequest request = read_as("127.0.0.1:7071");
    request.order = order;
    request.authorization = "Bearer " + kToken;
    request.origin = "http://127.0.0.1:7071";
    CHECK(status(guard, request) == 200);
    for (const char* origin :
         {"http://evil.org", "null", "https://127.0.0.1:7071", "http://127.0.0.1", "http://127.0.0.1:80"}) {
      request.origin = origin;
      CHECK_MESSAGE(status(guard, request) == 403, origin);
    }
  }
}

TEST_CASE("an order needs the token, and without one none is taken") {
  AdminGuard guard(admin_policy("127.0.0.1:7071", kToken, {}));
  CHECK(status(guard, order_with("Bearer " + kToken)) == 200);
  CHECK(status(guard, order_with("")) == 401);
  const std::vector<std::string> others = {"Bearer ", "Bearer x", "Basic " + kToken, "Bearer " + kToken + "t", kToken};
  for (const std::string& wrong : others) CHECK_MESSAGE(status(guard, order_with(wrong)) == 401, wrong);
  CHECK(status(guard, read_as("127.0.0.1:7071")) == 200);
  AdminGuard without(admin_policy("127.0.0.1:7071", "", {}));
  CHECK(status(without, order_with("Bearer ")) == 403);
  CHECK(status(without, order_with("")) == 403);
}

TEST_CASE("a proof does in place of the token, for its request, at its time, once") {
  AdminGuard guard(admin_policy("10.0.0.1:7071", kToken, {}), kNow - 1000);
  const auto shown = [&](const std::string& proof, std::uint64_t now = kNow, const std::string& body = "{}") {
    AdminRequest request = order_with(proof);
    request.proved = {"POST", "/job/stop", body};
    request.now_ms = now;
    return guard.denies(request);
  };
  const auto proof = [](const std::string& token, std::uint64_t time, std::uint64_t number = 7) {
    return token_proof_of(token, {"POST", "/job/stop", "{}"}, time, number);
  };
  CHECK_FALSE(contains(proof(kToken, kNow), kToken));
  CHECK_FALSE(shown(proof(kToken, kNow)));
  CHECK(shown(proof(kToken, kNow))->why == "the proof of the token was shown before");
  CHECK_FALSE(shown(proof(kToken, kNow + 1)));
  CHECK_FALSE(shown(proof(kToken, kNow, 8)));                         // two clients at once
  CHECK(shown(proof(kToken, kNow + 2), kNow, "{ }")->status == 401);  // another request
  CHECK(shown(proof(std::string(40, 'u'), kNow + 3))->why.starts_with("the token is wrong"));
  CHECK(contains(shown(proof(kToken, kNow + 61'000))->why, "61 s after this machine's time"));
  CHECK(contains(shown(proof(kToken, kNow), kNow + 61'000)->why, "61 s before"));
  CHECK(contains(shown(proof(kToken, kNow - 2000))->why, "this daemon began later"));
  for (const char* bad : {"Proof ", "Proof x", "Proof 1", "Proof 1 ", "Proof 18446744073709551616 00", "Proof -1 0"}) {
    CHECK_MESSAGE(shown(bad)->status == 401, bad);
  }
}

TEST_CASE("beyond loopback reading needs the token as well, but for whether the daemon lives") {
  AdminGuard guard(admin_policy("10.0.0.1:7071", kToken, {}));
  AdminRequest request = read_as("10.0.0.1:7071");
  CHECK(status(guard, request) == 401);
  request.health = true;
  CHECK(status(guard, request) == 200);
  request.health = false;
  request.authorization = "Bearer " + kToken;
  CHECK(status(guard, request) == 200);
  AdminGuard open(admin_policy("10.0.0.1:7071", "", {}));  // insecure = true
  CHECK(status(open, read_as("10.0.0.1:7071")) == 200);
}

TEST_CASE("secrets are the same or not") {
  CHECK(same_secret("", {}));
  CHECK(same_secret("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcd", "xbc", "abcabc"}) CHECK_FALSE(same_secret("abc", other));
  CHECK_FALSE(same_secret("", "a"));
}

}  // namespace tributary::testing::admin_guard_test
