#include <doctest/doctest.h>

#include "common/wire/codec.h"
#include "common/wire/part_fetch.h"

namespace tributary::part_fetch_test {

namespace {

constexpr JobId kJob(7);

std::vector<std::byte> content(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 4096);
  return bytes;
}

LargePart large_of(const std::vector<std::byte>& bytes) {
  const auto [high, low] = Checksum128().add(bytes.data(), bytes.size()).value();
  return {bytes.size(), high, low};
}

StatePart piece(const std::vector<std::byte>& bytes, const LargePart& large, std::uint64_t offset) {
  const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
  return {{kJob, large, offset},
          {from, from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(kPartBytes, bytes.size() - offset))}};
}

}  // namespace

TEST_CASE("parts come in order, a window at a time, and their checksum is right in the end") {
  const std::vector<std::byte> bytes = content(6 * kPartBytes + 5);
  const LargePart large = large_of(bytes);
  PartFetch fetch(kJob, large, 0);
  std::vector<WantPart> wanted = fetch.wants(0);
  CHECK(wanted.size() == PartFetch::kWindow);
  CHECK(fetch.wants(1).empty());
  std::uint64_t now = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(wanted[i].job == kJob);
    CHECK(wanted[i].offset == i * kPartBytes);
    CHECK_FALSE(fetch.ended());
    CHECK(fetch.take(piece(bytes, large, wanted[i].offset), ++now));
    for (const WantPart& more : fetch.wants(now)) wanted.push_back(more);
  }
  CHECK(wanted.size() == 7);
  CHECK(fetch.ended());
  CHECK(fetch.right());
}

TEST_CASE("what was not asked for, or is not next, is not taken") {
  const std::vector<std::byte> bytes = content(2 * kPartBytes);
  const LargePart large = large_of(bytes);
  PartFetch fetch(kJob, large, 0);
  fetch.wants(0);
  CHECK_FALSE(fetch.take(piece(bytes, large, kPartBytes), 1));
  CHECK_FALSE(fetch.take(piece(bytes, {large.bytes, 1, 2}, 0), 1));
  CHECK_FALSE(fetch.take({{kJob, large, 0}, {}}, 1));
  CHECK(fetch.taken() == 0);
  CHECK(fetch.take(piece(bytes, large, 0), 1));
  CHECK_FALSE(fetch.take(piece(bytes, large, 0), 1));
  CHECK(fetch.take(piece(bytes, large, kPartBytes), 1));
  CHECK_FALSE(fetch.take(piece(bytes, large, kPartBytes), 1));
}

TEST_CASE("other bytes than were announced are found out") {
  std::vector<std::byte> bytes = content(100);
  const LargePart large = large_of(bytes);
  bytes[50] ^= std::byte{1};
  PartFetch fetch(kJob, large, 0);
  CHECK(fetch.take(piece(bytes, large, 0), 1));
  CHECK(fetch.ended());
  CHECK_FALSE(fetch.right());
}

TEST_CASE("what does not come is asked for again, and given up when nothing comes for long") {
  const std::vector<std::byte> bytes = content(3 * kPartBytes);
  const LargePart large = large_of(bytes);
  PartFetch fetch(kJob, large, 0);
  CHECK(fetch.wants(0).size() == 3);
  CHECK(fetch.wants(PartFetch::kRepeatMs - 1).empty());
  CHECK(fetch.wants(PartFetch::kRepeatMs).size() == 3);
  CHECK(fetch.take(piece(bytes, large, 0), 20'000));
  CHECK(fetch.wants(20'000 + PartFetch::kRepeatMs).size() == 2);
  CHECK_FALSE(fetch.given_up(20'000));
  CHECK_FALSE(fetch.given_up(20'000 + PartFetch::kPatienceMs));
  CHECK(fetch.given_up(20'001 + PartFetch::kPatienceMs));
}

TEST_CASE("as long as who was asked says that it comes, it is waited for") {
  const std::vector<std::byte> bytes = content(kPartBytes);
  const LargePart large = large_of(bytes);
  PartFetch fetch(kJob, large, 0);
  std::uint64_t now = 0;
  for (int i = 0; i < 10; ++i) {
    fetch.comes(now += PartFetch::kPatienceMs - 1);
    CHECK_FALSE(fetch.given_up(now));
    CHECK(fetch.wants(now).size() == 1);
  }
  CHECK_FALSE(fetch.given_up(now + PartFetch::kPatienceMs));
  CHECK(fetch.given_up(now + PartFetch::kPatienceMs + 1));
}

TEST_CASE("pieces that lie outside, between the places of others, or have another size are malformed") {
  const LargePart large{2 * kPartBytes + 5, 1, 2};
  const auto arrives = [](const ControlMessage& message) {
    return decode_control(encode_control(message)).has_value();
  };
  CHECK(arrives(WantPart{kJob, large, 2 * kPartBytes}));
  CHECK_FALSE(arrives(WantPart{kJob, large, large.bytes}));
  CHECK_FALSE(arrives(WantPart{kJob, large, 5}));
  CHECK(arrives(WantPart{kJob, {0, 1, 2}, 0}));  // of nothing, which nobody has
  CHECK_FALSE(arrives(WantPart{kJob, {kMaxLargePart + 1, 1, 2}, 0}));
  CHECK(arrives(StatePart{{kJob, large, 0}, {}}));
  CHECK(arrives(StatePart{{kJob, large, 0}, {}, true}));
  CHECK_FALSE(arrives(StatePart{{kJob, large, 2 * kPartBytes}, content(5), true}));
  CHECK(arrives(StatePart{{kJob, large, 2 * kPartBytes}, content(5)}));
  CHECK_FALSE(arrives(StatePart{{kJob, large, 2 * kPartBytes}, content(6)}));
  CHECK_FALSE(arrives(StatePart{{kJob, large, 0}, content(5)}));
}

}  // namespace tributary::part_fetch_test
