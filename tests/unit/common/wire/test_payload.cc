#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/wire/payload.h"

namespace tributary::payload_test {
namespace {

using Bytes = std::vector<std::byte>;

Payload payload_of(const std::shared_ptr<const Bytes>& bytes) {
  return Payload(std::shared_ptr<const Bytes>(bytes), *bytes);
}

// As large as an owner may be, and it counts how often one of it dies without having been moved from.
struct Large {
  explicit Large(int& deaths) : deaths_(&deaths) {}
  Large(Large&& other) noexcept : deaths_(std::exchange(other.deaths_, nullptr)) {}
  Large& operator=(Large&&) = delete;
  ~Large() {
    if (deaths_) ++*deaths_;
  }
  int* deaths_;
  std::byte filling[56];
};
static_assert(sizeof(Large) == 64);

}  // namespace

TEST_CASE("a payload without owner is empty") {
  Payload payload;
  CHECK(payload.empty());
  CHECK(payload.bytes().empty());
  payload.reset();
  CHECK(payload.empty());
}

TEST_CASE("a payload keeps its owner as long as it lives, wherever it is moved") {
  const auto bytes = std::make_shared<const Bytes>(100, std::byte{7});
  {
    Payload a = payload_of(bytes);
    CHECK(bytes.use_count() == 2);
    Payload b = std::move(a);
    CHECK(a.empty());  // NOLINT(bugprone-use-after-move): what a moved-from payload is, is the point
    CHECK(a.bytes().empty());
    CHECK(b.bytes().data() == bytes->data());
    CHECK(b.bytes().size() == 100);
    CHECK(bytes.use_count() == 2);
    std::vector<Payload> grown;
    for (int i = 0; i < 20; ++i) grown.push_back(payload_of(bytes));  // relocated as the vector grows
    CHECK(bytes.use_count() == 22);
    grown[3] = std::move(b);
    CHECK(bytes.use_count() == 21);
    CHECK(grown[3].bytes().data() == bytes->data());
  }
  CHECK(bytes.use_count() == 1);
}

TEST_CASE("reset lets the owner go at once") {
  const auto bytes = std::make_shared<const Bytes>(1);
  Payload payload = payload_of(bytes);
  payload.reset();
  CHECK(payload.empty());
  CHECK(bytes.use_count() == 1);
}

TEST_CASE("a payload moved onto itself stays whole") {
  const auto bytes = std::make_shared<const Bytes>(1);
  Payload payload = payload_of(bytes);
  Payload& self = payload;
  payload = std::move(self);
  CHECK(payload.bytes().size() == 1);
  CHECK(bytes.use_count() == 2);
}

TEST_CASE("an owner of the largest size dies exactly once") {
  int deaths = 0;
  const std::byte byte{};
  {
    Payload payload(Large(deaths), {&byte, 1});
    Payload moved = std::move(payload);
    Payload assigned;
    assigned = std::move(moved);
    CHECK(deaths == 0);
    CHECK(assigned.bytes().data() == &byte);
  }
  CHECK(deaths == 1);
}

}  // namespace tributary::payload_test
