// Which connections are cut, so that all of them stay within bounds.
#include <doctest/doctest.h>

#include <algorithm>

#include "server/coordinator/cluster/connection_book.h"
#include "tests/unit/expect.h"

namespace tributary::connection_book_test {
namespace {

ConnectionLimits limits(std::size_t newcomers, std::size_t of_key, std::uint64_t held) {
  return {[newcomers] { return newcomers; }, [of_key](const std::string&) { return of_key; }, [held] { return held; }};
}

std::vector<int> ids_of(const std::vector<ConnectionBook::Cut>& cuts) {
  std::vector<int> ids;
  for (const auto& cut : cuts) ids.push_back(cut.id);
  std::ranges::sort(ids);
  return ids;
}

}  // namespace

TEST_CASE("the address with most newcomers loses its oldest ones, and nobody else") {
  ConnectionBook book(limits(4, 10, 1000));
  book.accepted(1, "10.0.0.1", 0);
  book.accepted(2, "10.0.0.9", 1);
  book.accepted(3, "10.0.0.9", 2);
  book.accepted(4, "10.0.0.9", 3);
  CHECK(book.beyond().empty());
  book.accepted(5, "10.0.0.9", 4);
  book.accepted(6, "10.0.0.2", 5);
  const auto cuts = book.beyond();
  CHECK(ids_of(cuts) == std::vector<int>{2, 3});
  CHECK(cuts[0].why == "a connection from 10.0.0.9: more than 4 connections have brought no whole message yet");
  CHECK(book.beyond().empty());  // those count no more
  book.brought(1, "k", 6);       // and neither does who has said something
  book.accepted(7, "10.0.0.2", 7);
  CHECK(book.beyond().empty());
  book.ended(2);
  book.accepted(2, "10.0.0.9", 8);  // the descriptor is another connection's now
  CHECK(ids_of(book.beyond()).size() == 1);
}

TEST_CASE("a key that has too many connections loses the newest ones") {
  ConnectionBook book(limits(10, 2, 1000));
  for (int id = 1; id <= 5; ++id) book.accepted(id, "10.0.0.1", 0);
  book.brought(1, "a", 50);
  book.brought(2, "a", 10);
  book.brought(3, "b", 1);
  CHECK(book.beyond().empty());
  book.brought(4, "a", 20);
  CHECK(ids_of(book.beyond()) == std::vector<int>{4});
  book.brought(5, "b", 60);
  book.brought(4, "b", 61);  // it speaks with another key now
  CHECK(book.beyond().empty());
}

TEST_CASE("beyond the bound on bytes goes who has brought no whole message for longest") {
  ConnectionBook book(limits(10, 10, 1000));
  for (int id = 1; id <= 4; ++id) book.accepted(id, "10.0.0.1", static_cast<std::uint64_t>(id));
  book.holds(1, 0);
  book.holds(2, 500);
  book.holds(3, 500);
  CHECK(book.beyond().empty());
  CHECK(book.held_bytes() == 1000);
  book.brought(2, "a", 100);
  book.holds(2, 500);
  book.holds(4, 100);
  const auto cuts = book.beyond();
  CHECK(ids_of(cuts) == std::vector<int>{3});
  CHECK(testing::contains(cuts[0].why, "of messages that have not ended"));
  CHECK(book.held_bytes() == 600);
  book.holds(2, 5000);  // by itself beyond the bound
  CHECK(ids_of(book.beyond()) == std::vector<int>{2, 4});
  CHECK(book.ids() == std::vector<int>{1});
}

}  // namespace tributary::connection_book_test
