// The C interface of a trainer on a GPU, over a real attach server and a device that does what a test says. (The
// library of the real one is not linked: its one function is here.)
#include <chrono>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "session/c_device.h"
#include "session/trainer_device.h"
#include "tests/unit/session/c_options.h"
#include "tests/unit/worker/node_fixture.h"

using namespace tributary;
using namespace tributary::testing;

namespace {

constexpr std::chrono::milliseconds kBlocked{120};  // a wait that would end at once has ended by then

// One stream, which stands still until run() is called.
class ScriptedDevice final : public TrainerDevice {
 public:
  ~ScriptedDevice() override {
    for (const auto& [function, argument] : forgotten_) function(argument);
  }
  std::string uuid() const override { return "GPU-scripted"; }
  Result<void*> open(std::span<const std::byte>) override { return fail(ErrorCode::kDevice, "nothing is lent here"); }
  void close(void*) override {}
  Status pin(std::span<std::byte> memory) override {
    if (refuses_pins) return fail(ErrorCode::kDevice, "cuda:0: pages cannot be locked");
    pinned.push_back(memory);
    return {};
  }
  void unpin(std::span<std::byte> memory) override {
    CHECK(std::erase_if(pinned, [&](const auto& one) { return one.data() == memory.data(); }) == 1);
  }
  Status call_after(void* given, void (*function)(void*), void* argument) override {
    CHECK(given == stream());
    const std::lock_guard lock(mutex_);
    if (refuses_calls) return fail(ErrorCode::kDevice, "cuda:0: planned refusal of a call");
    waiting_.emplace_back(function, argument);
    return {};
  }
  Result<bool> idle(void* given) override {
    CHECK(given == stream());
    const std::lock_guard lock(mutex_);
    if (says_idle) return true;
    if (failed_) return fail(ErrorCode::kUnavailable, "cuda:0: an illegal memory access was encountered");
    return waiting_.empty();
  }

  void* stream() { return this; }
  // The stream gets there: `count` calls are made, on a thread of the device's own.
  void run(std::size_t count) {
    std::jthread([&] {
      for (; count > 0; --count) {
        std::pair<void (*)(void*), void*> next;
        {
          const std::lock_guard lock(mutex_);
          REQUIRE_FALSE(waiting_.empty());
          next = waiting_.front();
        }
        next.first(next.second);
        const std::lock_guard lock(mutex_);
        waiting_.pop_front();
      }
    });
  }
  // Keeps the waiting callbacks for the destructor, which calls them when no caller expects them any more.
  void forget_all() {
    const std::lock_guard lock(mutex_);
    forgotten_ = std::exchange(waiting_, {});
  }
  void fail_all() {
    forget_all();
    const std::lock_guard lock(mutex_);
    failed_ = true;
  }

  bool refuses_pins = false, refuses_calls = false;
  bool says_idle = false;  // also when it is not
  std::vector<std::span<std::byte>> pinned;

 private:
  std::mutex mutex_;
  std::deque<std::pair<void (*)(void*), void*>> waiting_, forgotten_;
  bool failed_ = false;
};

std::shared_ptr<ScriptedDevice> current;  // that an attach finds

bool lies_in(const std::vector<std::span<std::byte>>& memory, const void* address) {
  return std::ranges::any_of(
      memory, [&](const auto& one) { return address >= one.data() && address < one.data() + one.size(); });
}

// The only rank of a node, started, on the scripted device.
struct OneRank {
  explicit OneRank(bool pins = true) : device(std::make_shared<ScriptedDevice>()) {
    device->refuses_pins = !pins;
    current = device;
    node.run();
    auto attached = std::async(std::launch::async, [this] {
      COptions o(node.socket());
      o.options.device = 0;
      o.options.gradients_move = 1;
      o.options.note = [](const char* text, void* told) {
        static_cast<std::vector<std::string>*>(told)->push_back(text);
      };
      o.options.note_context = &notes;
      const tributary_status status = tributary_attach(&o.options, &session);
      CHECK_MESSAGE(status == TRIBUTARY_OK, tributary_last_error());
    });
    node.admit();
    attached.get();
    REQUIRE(session);
    REQUIRE(tributary_start(session) == TRIBUTARY_OK);
  }
  ~OneRank() {
    tributary_destroy(session);
    CHECK(device->pinned.empty());
    current.reset();
  }
  tributary_status ready_after(std::size_t tensor) {
    return tributary_ready_after(session, tensor, 4, TRIBUTARY_SCHEDULED_RATE, device->stream());
  }
  std::uint64_t said(std::size_t tensor) { return node.lanes.job()->tensor_words(0)[tensor].round.load(); }
  std::future<tributary_status> wait(std::size_t tensor) {
    return std::async(std::launch::async, [this, tensor] {
      tributary_step step = TRIBUTARY_RESTART;
      const tributary_status status = tributary_wait(session, tensor, &step);
      if (status != TRIBUTARY_OK) failure = tributary_last_error();
      return status != TRIBUTARY_OK ? status : step == TRIBUTARY_CONTINUE ? TRIBUTARY_OK : -1;
    });
  }

  FakeNode node;
  std::shared_ptr<ScriptedDevice> device;
  std::vector<std::string> notes;
  tributary_session* session = nullptr;
  std::string failure;  // of a wait
};

bool blocked(const std::future<tributary_status>& wait) {
  return wait.wait_for(kBlocked) == std::future_status::timeout;
}

}  // namespace

namespace tributary {

Result<std::shared_ptr<TrainerDevice>> make_cuda_trainer_device(int device) {
  CHECK(device == 0);
  return current;
}

}  // namespace tributary

TEST_CASE("a gradient is ready when its stream gets there, and its answer is waited for then") {
  OneRank rank;
  CHECK(lies_in(rank.device->pinned, tributary_parameters(rank.session, 2) + 2999));
  for (std::uint64_t round = 1; round <= 5; ++round) {
    for (std::size_t t = 3; t-- > 0;) {
      CHECK(lies_in(rank.device->pinned, tributary_gradient(rank.session, t)));  // it moves
      REQUIRE(rank.ready_after(t) == TRIBUTARY_OK);
    }
    CHECK(failed_with(rank.ready_after(1), TRIBUTARY_WRONG_ROUND, "tensor 'bias'"));
    CHECK(rank.said(2) == round - 1);

    auto all = rank.wait(TRIBUTARY_ALL_TENSORS);
    CHECK(blocked(all));  // though the answer to what was said last is there
    rank.device->run(1);
    CHECK(rank.said(2) == round);
    CHECK(rank.said(1) == round - 1);
    rank.device->run(2);
    CHECK(rank.said(0) == round);
    CHECK(rank.node.lanes.job()->tensor_words(0)[0].weight.load() == 4);
    CHECK(blocked(all));  // there is no answer
    rank.node.lanes.complete(Round(round));
    CHECK(all.get() == TRIBUTARY_OK);
  }
}

TEST_CASE("who waits for a tensor does not wait for what streams have to say of others") {
  const auto device = std::make_shared<ScriptedDevice>();
  int said = 0;
  {
    c::SessionDevice session(device, 2);
    REQUIRE(session.ready_after(device->stream(), 1, [&] { ++said; }));
    REQUIRE(session.ready_after(device->stream(), 0, [&] { ++said; }));
    device->run(1);
    CHECK(session.said(1));
    CHECK(said == 1);
    device->run(1);
  }
  CHECK(said == 2);
}

TEST_CASE("a device that fails is told by who waits for it, and holds up nobody") {
  OneRank rank;
  for (std::size_t t = 0; t < 3; ++t) REQUIRE(rank.ready_after(t) == TRIBUTARY_OK);
  auto all = rank.wait(TRIBUTARY_ALL_TENSORS);
  CHECK(blocked(all));
  rank.device->fail_all();
  CHECK(all.get() == TRIBUTARY_NO_DEVICE);
  CHECK(contains(rank.failure, "cuda:0: an illegal memory access"));
  CHECK(rank.said(0) == 0);
}

TEST_CASE("what a stream does not take is not said, and can be said again") {
  OneRank rank;
  rank.device->refuses_calls = true;
  CHECK(failed_with(rank.ready_after(1), TRIBUTARY_NO_DEVICE, "planned refusal of a call"));
  rank.device->refuses_calls = false;
  CHECK(rank.ready_after(1) == TRIBUTARY_OK);
  rank.device->run(1);
  CHECK(rank.said(1) == 1);
}

TEST_CASE("a stream that has ended without saying it is told by the wait") {
  OneRank rank;
  REQUIRE(rank.ready_after(0) == TRIBUTARY_OK);
  rank.device->forget_all();
  CHECK(rank.wait(0).get() == TRIBUTARY_NO_DEVICE);
  CHECK(contains(rank.failure, "keep streams until tributary_wait() has returned"));
}

TEST_CASE("a call that comes after it was given up touches nothing, be the session there or not") {
  std::shared_ptr<ScriptedDevice> device;
  {
    OneRank rank;
    device = rank.device;
    device->says_idle = true;
    for (std::size_t t = 0; t < 2; ++t) REQUIRE(rank.ready_after(t) == TRIBUTARY_OK);
    CHECK(rank.wait(0).get() == TRIBUTARY_NO_DEVICE);
    device->run(1);
    CHECK(rank.said(0) == 0);
    CHECK(failed_with(rank.ready_after(2), TRIBUTARY_NO_DEVICE, "has ended without it"));
  }
  device->run(1);
}

TEST_CASE("a session ends after what streams still have to say to it") {
  auto rank = std::make_unique<OneRank>();
  const auto device = rank->device;
  REQUIRE(rank->ready_after(0) == TRIBUTARY_OK);
  auto ended = std::async(std::launch::async, [&] { rank.reset(); });
  CHECK(ended.wait_for(kBlocked) == std::future_status::timeout);
  CHECK_FALSE(device->pinned.empty());
  device->run(1);
  ended.get();
}

TEST_CASE("memory that cannot be pinned is said, and used as it is") {
  OneRank rank(false);
  REQUIRE(rank.notes.size() >= 1);
  CHECK(rank.notes.back() == "copies are slower: cuda:0: pages cannot be locked");
  for (std::size_t t = 0; t < 3; ++t) REQUIRE(rank.ready_after(t) == TRIBUTARY_OK);
  rank.device->run(3);
  rank.node.lanes.complete(Round(1));
  CHECK(rank.wait(TRIBUTARY_ALL_TENSORS).get() == TRIBUTARY_OK);
}
