#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/allreduce/gloo_ring.h"

namespace tributary::gloo_ring_test {

namespace {

using std::chrono::milliseconds;

// Adds `values`, and checks that every part is asked for once.
class Values final : public RingSource {
 public:
  explicit Values(std::vector<float> values) : values_(std::move(values)), asked_(values_.size()) {}
  void fill(std::size_t first, std::size_t count, float* out) override {
    for (std::size_t i = 0; i < count; ++i) out[i] = take(first + i);
  }
  void fill_and_add(std::size_t first, std::size_t count, const float* other, float* out) override {
    for (std::size_t i = 0; i < count; ++i) out[i] = take(first + i) + other[i];
  }
  bool each_once() const {
    return std::ranges::all_of(asked_, [](int times) { return times == 1; });
  }

 private:
  float take(std::size_t at) {
    ++asked_[at];
    return values_[at];
  }
  const std::vector<float> values_;
  std::vector<int> asked_;
};

struct Ring {
  explicit Ring(std::uint32_t size, milliseconds patience = milliseconds(0),
                milliseconds timeout = milliseconds(10'000)) {
    device = required(GlooDevice::create("127.0.0.1"));
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      GlooRing::Options options{.rank = rank, .size = size, .timeout = timeout, .patience = patience};
      auto ring = required(GlooRing::create(device, options));
      members.push_back(std::move(ring));
    }
  }
  void connect() {
    each([&](std::uint32_t rank) {
      return members[rank]->connect(members[members[rank]->previous()]->address_for_next(),
                                    members[members[rank]->next()]->address_for_previous());
    });
  }
  // `run` on every member at a time; all must succeed.
  template <class Run>
  void each(Run run) {
    std::vector<std::future<Status>> done;
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      done.push_back(std::async(std::launch::async, [&run, rank] { return run(rank); }));
    }
    for (auto& one : done) {
      const Status status = one.get();
      CHECK_MESSAGE(status.has_value(), (status ? "" : status.error().message));
    }
  }
  std::shared_ptr<GlooDevice> device;
  std::vector<std::unique_ptr<GlooRing>> members;
};

}  // namespace

TEST_CASE("members of a ring add up, for sizes of every kind") {
  for (const std::uint32_t size : {1u, 2u, 3u, 5u}) {
    Ring ring(size);
    ring.connect();
    for (const std::size_t count : {1u, 7u, 1000u, 300'000u}) {
      ring.each([&](std::uint32_t rank) -> Status {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank + i % 100);
        Values source(std::exchange(values, std::vector<float>(count, -1e9f)));
        if (Status summed = ring.members[rank]->allreduce(values.data(), count, source); !summed) return summed;
        if (!source.each_once()) return fail(ErrorCode::kInternal, "a part was asked for twice, or never");
        const float ranks = static_cast<float>(size * (size - 1) / 2);
        for (std::size_t i = 0; i < count; ++i) {
          if (values[i] != ranks + static_cast<float>(size * (i % 100))) return fail(ErrorCode::kInternal, "wrong");
        }
        return {};
      });
    }
  }
}

// A neighbour may ask for them while this member is connected already: with another address it would call nobody.
TEST_CASE("addresses stay what they were when a member has connected") {
  Ring ring(3);
  const auto addresses = [&] {
    std::vector<std::vector<std::byte>> all;
    for (const auto& member : ring.members) {
      all.push_back(member->address_for_previous());
      all.push_back(member->address_for_next());
    }
    return all;
  };
  const auto before = addresses();
  ring.connect();
  CHECK(addresses() == before);
}

TEST_CASE("values are passed along the ring") {
  Ring ring(4);
  ring.connect();
  ring.each([&](std::uint32_t rank) -> Status {
    std::vector<int> values(5000, rank == 0 ? 42 : 0);
    const std::size_t bytes = values.size() * sizeof(int);
    if (rank != 0) {
      if (Status got = ring.members[rank]->receive_previous(values.data(), bytes); !got) return got;
    }
    if (rank != 3) {
      if (Status sent = ring.members[rank]->send_next(values.data(), bytes); !sent) return sent;
    }
    return values == std::vector<int>(5000, 42) ? Status() : fail(ErrorCode::kInternal, "wrong");
  });
}

TEST_CASE("abort wakes a member that waits for another, and connections stay for those who need them") {
  Ring ring(2);
  ring.connect();
  std::vector<float> values(1000);
  Values source(values);
  auto waiting =
      std::async(std::launch::async, [&] { return ring.members[0]->allreduce(values.data(), 1000, source); });
  CHECK(waiting.wait_for(milliseconds(50)) == std::future_status::timeout);
  ring.members[0]->abort();
  const auto status = failure_of(waiting.get());
  CHECK(status.code == ErrorCode::kStopped);
  CHECK(ring.members[0]->allreduce(values.data(), 1000, source).error().code == ErrorCode::kStopped);
}

TEST_CASE("abort wakes a member that connects") {
  Ring ring(2);
  // Whichever of the two listens waits for the other to call.
  auto first = std::async(std::launch::async, [&] {
    return ring.members[0]->connect(ring.members[1]->address_for_next(), ring.members[1]->address_for_previous());
  });
  std::this_thread::sleep_for(milliseconds(30));
  ring.members[0]->abort();
  CHECK(first.wait_for(std::chrono::seconds(5)) == std::future_status::ready);
}

TEST_CASE("a member that does not come is waited for no longer than the patience") {
  Ring ring(2, milliseconds(100));
  ring.connect();
  std::vector<float> values(1000);
  Values source(values);
  const auto status = failure_of(ring.members[1]->allreduce(values.data(), 1000, source));
  CHECK(status.code == ErrorCode::kTimeout);
  CHECK(testing::contains(status.message, "members 0, 1 and 0 of a ring of 2"));
}

TEST_CASE("who watches hears of a broken connection, of a goodbye, and of a call") {
  Ring ring(3);
  ring.connect();
  for (auto& member : ring.members) REQUIRE(member->expect_goodbyes());
  auto watching = std::async(std::launch::async, [&] { return ring.members[1]->watch(); });
  SUBCASE("a broken connection") {
    ring.members[0].reset();
    const auto status = failure_of(watching.get());
    CHECK(status.code == ErrorCode::kUnavailable);
  }
  SUBCASE("a call, and then goodbyes") {
    ring.members[1]->rouse();
    CHECK(watching.get());
    ring.each([&](std::uint32_t rank) { return ring.members[rank]->say_goodbye(std::chrono::seconds(10)); });
  }
  SUBCASE("a goodbye") {
    auto leaving =
        std::async(std::launch::async, [&] { return ring.members[0]->say_goodbye(std::chrono::seconds(10)); });
    CHECK(watching.get());
    CHECK(leaving.wait_for(milliseconds(50)) == std::future_status::timeout);  // its neighbours have not left
    std::thread others([&] { CHECK(ring.members[1]->say_goodbye(std::chrono::seconds(10))); });
    CHECK(ring.members[2]->say_goodbye(std::chrono::seconds(10)));
    others.join();
    CHECK(leaving.get());
  }
}

// As Values, but the last part that is added waits: for a member that everybody has heard, and that goes no further.
class Stalling final : public RingSource {
 public:
  explicit Stalling(int stall_at) : stall_at_(stall_at) {}
  void fill(std::size_t, std::size_t count, float* out) override { std::fill_n(out, count, 1.0f); }
  void fill_and_add(std::size_t, std::size_t count, const float* other, float* out) override {
    if (++adds_ == stall_at_) released_.get_future().wait();
    for (std::size_t i = 0; i < count; ++i) out[i] = 1.0f + other[i];
  }
  void release() { released_.set_value(); }
  int adds() const { return adds_; }

 private:
  const int stall_at_;  // 0: never
  int adds_ = 0;
  std::promise<void> released_;
};

TEST_CASE("the time-out counts from the moment all have contributed, and not before") {
  constexpr std::size_t kCount = 1000;
  std::vector<float> first(kCount), second(kCount);
  int adds = 0;
  {
    Ring ring(2, milliseconds(0), milliseconds(200));
    ring.connect();
    Stalling one(0), other(0);
    auto waiting =
        std::async(std::launch::async, [&] { return ring.members[0]->allreduce(first.data(), kCount, one); });
    // The other member takes its time, longer than the time-out.
    CHECK(waiting.wait_for(milliseconds(600)) == std::future_status::timeout);
    CHECK(ring.members[1]->allreduce(second.data(), kCount, other));
    CHECK(waiting.get());
    CHECK(first == std::vector<float>(kCount, 2.0f));
    adds = other.adds();
    REQUIRE(adds > 0);
  }
  Ring ring(2, milliseconds(0), milliseconds(200));
  ring.connect();
  Stalling one(0), other(adds);
  auto stalling =
      std::async(std::launch::async, [&] { return ring.members[1]->allreduce(second.data(), kCount, other); });
  auto waiting = std::async(std::launch::async, [&] { return ring.members[0]->allreduce(first.data(), kCount, one); });
  const bool over = waiting.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  CHECK(over);
  if (!over) ring.members[0]->abort();
  const auto status = failure_of(waiting.get());
  CHECK(status.code == ErrorCode::kTimeout);
  CHECK(testing::contains(status.message, "members 1, 0 and 1 of a ring of 2"));
  other.release();
  static_cast<void>(stalling.get());
}

TEST_CASE("members meet, and none leaves before the last has come") {
  Ring ring(3);
  ring.connect();
  auto first = std::async(std::launch::async, [&] { return ring.members[0]->meet(std::chrono::seconds(20)); });
  auto second = std::async(std::launch::async, [&] { return ring.members[1]->meet(std::chrono::seconds(20)); });
  CHECK(first.wait_for(milliseconds(50)) == std::future_status::timeout);
  CHECK(second.wait_for(milliseconds(0)) == std::future_status::timeout);
  CHECK(ring.members[2]->meet(std::chrono::seconds(20)));
  CHECK(first.get());
  CHECK(second.get());
  const auto alone = failure_of(ring.members[1]->meet(milliseconds(50)));
  CHECK(alone.code == ErrorCode::kTimeout);
}

TEST_CASE("addresses that cannot be right are refused") {
  Ring ring(2);
  const std::vector<std::byte> noise(5, std::byte{0x77}), too_long(1000, std::byte{1});
  CHECK_FALSE(ring.members[0]->connect(noise, noise));
  CHECK_FALSE(ring.members[1]->connect(too_long, too_long));
}

}  // namespace tributary::gloo_ring_test
