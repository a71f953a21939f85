// The C interface over a real attach server: what its functions answer, and when they refuse.
#include <cmath>
#include <cstring>
#include <future>
#include <limits>

#include "common/base/weight.h"
#include "tests/unit/session/c_options.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::c_interface_test {

using namespace testing;

namespace {

struct Destroy {
  void operator()(tributary_session* session) const { tributary_destroy(session); }
};
using CSession = std::unique_ptr<tributary_session, Destroy>;

// Local rank `rank` of `ranks`, with what the coordinator answers.
std::vector<CSession> attach(FakeNode& node, std::uint32_t ranks = 1, std::uint32_t view = 1, Round resume = Round(0),
                             tributary_recovery_handle* recovery = nullptr) {
  const std::size_t joins = node.coordinator.all<JoinJob>().size();
  std::vector<std::future<CSession>> coming;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    coming.push_back(std::async(std::launch::async, [&node, rank, ranks, recovery] {
      COptions o(node.socket());
      o.options.rank = o.options.local_rank = rank;
      o.options.world_size = o.options.local_world_size = ranks;
      o.options.recovery = recovery;
      tributary_session* session = nullptr;
      const tributary_status status = tributary_attach(&o.options, &session);
      CHECK_MESSAGE(status == TRIBUTARY_OK, tributary_last_error());
      return CSession(session);
    }));
  }
  node.coordinator.await<JoinJob>(joins + 1);
  node.welcome(view, resume);
  std::vector<CSession> sessions;
  for (auto& one : coming) {
    sessions.push_back(one.get());
    REQUIRE(sessions.back());
  }
  return sessions;
}

tributary_view view_of(const CSession& session) {
  tributary_view view{.size = sizeof view};
  CHECK(tributary_get_view(session.get(), &view) == TRIBUTARY_OK);
  return view;
}

tributary_status ready_all(const CSession& session, std::uint64_t weight = 4, double rate = TRIBUTARY_SCHEDULED_RATE) {
  for (std::size_t t = 3; t-- > 0;) {
    if (const auto status = tributary_ready(session.get(), t, weight, rate); status != TRIBUTARY_OK) return status;
  }
  return TRIBUTARY_OK;
}

tributary_step wait(const CSession& session) {
  tributary_step step = TRIBUTARY_RESTART;
  CHECK_MESSAGE(tributary_wait(session.get(), TRIBUTARY_ALL_TENSORS, &step) == TRIBUTARY_OK, tributary_last_error());
  return step;
}

}  // namespace

TEST_CASE("two ranks attach, give initial values, train and finish") {
  RunningNode node;
  const auto sessions = attach(node, 2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const tributary_view view = view_of(sessions[rank]);
    CHECK(view.size == sizeof view);
    CHECK(view.rank == rank);
    CHECK(view.world_size == 2);
    CHECK(view.local_world_size == 2);
    CHECK(view.fresh == 1);
    CHECK(view.on_device == 0);
    CHECK(view.resume_round == 0);
    CHECK(view.job == 99);
  }
  CHECK(tributary_initial(sessions[1].get(), 0) == nullptr);
  CHECK(contains(tributary_last_error(), "another rank gives them"));
  CHECK(tributary_initial(sessions[0].get(), 3) == nullptr);
  CHECK(contains(tributary_last_error(), "there is no tensor 3: the session has 3"));
  float* initial = tributary_initial(sessions[0].get(), 1);
  REQUIRE(initial);
  initial[49] = 2.5f;
  for (const CSession& session : sessions) REQUIRE(tributary_start(session.get()) == TRIBUTARY_OK);
  CHECK(tributary_initial(sessions[0].get(), 1) == nullptr);
  CHECK(contains(tributary_last_error(), "tributary_start() has been called"));
  CHECK(failed_with(tributary_start(sessions[0].get()), TRIBUTARY_INVALID_ARGUMENT, "a second time"));
  CHECK(failed_with(tributary_ready_after(sessions[0].get(), 0, 4, TRIBUTARY_SCHEDULED_RATE, nullptr),
                    TRIBUTARY_INVALID_ARGUMENT, "in a session without a device"));
  CHECK(tributary_parameters(sessions[1].get(), 1)[49] == 2.5f);

  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      float* gradient = tributary_gradient(sessions[rank].get(), 2);
      REQUIRE(gradient);
      for (int i = 0; i < 3000; ++i) gradient[i] = static_cast<float>(rank + 1);
      CHECK(ready_all(sessions[rank], 8) == TRIBUTARY_OK);
    }
    CHECK(node.lanes.job()->tensor_words(1)[0].weight.load() == 8);
    node.lanes.complete(Round(round));
    for (const CSession& session : sessions) CHECK(wait(session) == TRIBUTARY_CONTINUE);
    CHECK(tributary_parameters(sessions[0].get(), 2)[2999] == 3.0f * static_cast<float>(round));
  }
  tributary_gate gate{.size = sizeof gate};
  CHECK(tributary_get_gate(sessions[0].get(), 3, &gate) == TRIBUTARY_OK);
  CHECK(gate.known == 0);
  CHECK(gate.loss_scale == 0.0f);
  tributary_stats stats{.size = sizeof stats};
  CHECK(tributary_get_stats(sessions[0].get(), &stats) == TRIBUTARY_OK);
  CHECK(std::string(tributary_stop_reason(sessions[0].get())).empty());

  CHECK(failed_with(tributary_saved(sessions[0].get()), TRIBUTARY_INVALID_ARGUMENT, "before tributary_finish()"));
  CHECK(failed_with(tributary_finish(sessions[0].get(), static_cast<tributary_leave>(4), nullptr),
                    TRIBUTARY_INVALID_ARGUMENT, "told to leave as 4"));
  CHECK(failed_with(tributary_finish(sessions[0].get(), TRIBUTARY_FINISHED, "\xff"), TRIBUTARY_INVALID_ARGUMENT,
                    "no UTF-8"));
  for (const CSession& session : sessions) {
    CHECK(tributary_finish(session.get(), TRIBUTARY_FINISHED, nullptr) == TRIBUTARY_OK);
  }
  CHECK(failed_with(tributary_finish(sessions[0].get(), TRIBUTARY_FINISHED, nullptr), TRIBUTARY_INVALID_ARGUMENT,
                    "a second time"));
  CHECK(failed_with(ready_all(sessions[0]), TRIBUTARY_INVALID_ARGUMENT, "after tributary_finish()"));
  tributary_step step;
  CHECK(failed_with(tributary_wait(sessions[0].get(), 0, &step), TRIBUTARY_INVALID_ARGUMENT, "after tributary_finish"));
}

TEST_CASE("a gradient goes with its group's settings, which last until others are said") {
  RunningNode node;
  const auto sessions = attach(node);
  tributary_session* s = sessions[0].get();
  CHECK(failed_with(tributary_group_settings(s, 0, 0.5, TRIBUTARY_CONFIGURED), TRIBUTARY_INVALID_ARGUMENT,
                    "before tributary_start()"));
  REQUIRE(tributary_start(s) == TRIBUTARY_OK);
  const auto said = [&](double rate) {
    CHECK(ready_all(sessions[0], 4, rate) == TRIBUTARY_OK);
    const StepSettings settings = node.lanes.job()->tensor_words(0)[1].settings();
    node.lanes.complete(Round(node.lanes.job()->tensor_words(0)[1].round.load()));
    CHECK(wait(sessions[0]) == TRIBUTARY_CONTINUE);
    return settings;
  };
  CHECK(said(0.25) == StepSettings{.lr = 0.25});
  REQUIRE(tributary_group_settings(s, 0, 0.5, TRIBUTARY_CONFIGURED) == TRIBUTARY_OK);
  CHECK(said(0.25) == StepSettings{.lr = 0.25, .weight_decay = 0.5});
  CHECK(failed_with(tributary_group_settings(s, 1, 0.5, 0.5), TRIBUTARY_INVALID_ARGUMENT, "has no group 1"));
  CHECK(failed_with(tributary_group_settings(s, 0, -0.5, TRIBUTARY_CONFIGURED), TRIBUTARY_INVALID_ARGUMENT,
                    "weight_decay -0.5"));
  CHECK(failed_with(tributary_group_settings(s, 0, 0.5, 0.75), TRIBUTARY_INVALID_ARGUMENT, "momentum 0.75"));
  CHECK(said(TRIBUTARY_SCHEDULED_RATE) == StepSettings{.weight_decay = 0.5});
  REQUIRE(tributary_group_settings(s, 0, TRIBUTARY_CONFIGURED, TRIBUTARY_CONFIGURED) == TRIBUTARY_OK);
  CHECK(said(0.125) == StepSettings{.lr = 0.125});
}

TEST_CASE("a rank gets the values of all ranks, by rank, or a step") {
  RunningNode node;
  const auto sessions = attach(node);
  tributary_session* s = sessions[0].get();
  const tributary_value* values = nullptr;
  size_t count = 7;
  tributary_step step = TRIBUTARY_RESTART;
  CHECK(failed_with(tributary_gather(s, 0, 0, "a", 1, &values, &count, &step), TRIBUTARY_INVALID_ARGUMENT,
                    "before tributary_start()"));
  REQUIRE(tributary_start(s) == TRIBUTARY_OK);
  CHECK(failed_with(tributary_gather(s, 0, 0, nullptr, 1, &values, &count, &step), TRIBUTARY_INVALID_ARGUMENT,
                    "the value to give is NULL, and its size 1"));
  CHECK(failed_with(tributary_gather(s, 0, 0, "a", 1, nullptr, &count, &step), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  CHECK(failed_with(tributary_gather(s, 0, 0, "a", 1, &values, nullptr, &step), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  CHECK(failed_with(tributary_gather(s, 0, 0, "a", 1, &values, &count, nullptr), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  const std::string large(kMaxValueBytes + 1, 'x');
  CHECK(failed_with(tributary_gather(s, 0, 0, large.data(), large.size(), &values, &count, &step), TRIBUTARY_LIMIT,
                    "65537 bytes"));
  const tributary_value known[2] = {{"a", 1}, {nullptr, 0}};
  CHECK(failed_with(tributary_gathered(s, 0, 7, nullptr, 2), TRIBUTARY_INVALID_ARGUMENT, "with one for each rank"));
  CHECK(failed_with(tributary_gathered(s, 0, 7, known, 0), TRIBUTARY_INVALID_ARGUMENT, "has 0 values"));
  const tributary_value wrong{nullptr, 1};
  CHECK(failed_with(tributary_gathered(s, 0, 7, &wrong, 1), TRIBUTARY_INVALID_ARGUMENT, "rank 0 is NULL"));

  auto gathered =
      std::async(std::launch::async, [&] { return tributary_gather(s, 0, 0, nullptr, 0, &values, &count, &step); });
  RankValues said = node.coordinator.await<RankValues>();
  said.shared.complete = true;
  said.shared.values.push_back({1, {std::byte('b'), std::byte('c')}});
  node.server->on_control(said);
  CHECK(gathered.get() == TRIBUTARY_OK);
  CHECK(step == TRIBUTARY_CONTINUE);
  REQUIRE(count == 2);
  CHECK(values[0].size == 0);
  CHECK(std::string(static_cast<const char*>(values[1].data), values[1].size) == "bc");

  CHECK(tributary_gathered(s, 0, 7, known, 2) == TRIBUTARY_OK);
  CHECK(node.coordinator.await<RankValues>(2).shared.values.size() == 2);

  gathered = std::async(std::launch::async, [&] { return tributary_gather(s, 0, 1, "a", 1, &values, &count, &step); });
  node.coordinator.await<RankValues>(3);
  node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "node 1 is lost"});
  CHECK(gathered.get() == TRIBUTARY_OK);
  CHECK(step == TRIBUTARY_RESTART);
  CHECK(count == 0);
  CHECK(std::string(tributary_stop_reason(s)) == "node 1 is lost");
}

TEST_CASE("calls before the start, or out of order in a round, are refused and change nothing") {
  RunningNode node;
  const auto sessions = attach(node);
  tributary_session* s = sessions[0].get();
  tributary_step step;
  CHECK(failed_with(tributary_ready(s, 0, 1, 0.1), TRIBUTARY_INVALID_ARGUMENT, "before tributary_start()"));
  CHECK(failed_with(tributary_wait(s, 0, &step), TRIBUTARY_INVALID_ARGUMENT, "before tributary_start()"));
  CHECK(failed_with(tributary_keep(s, 1, "a", 1), TRIBUTARY_INVALID_ARGUMENT, "before tributary_start()"));
  CHECK(failed_with(tributary_last_round(s, 1), TRIBUTARY_INVALID_ARGUMENT, "before tributary_start()"));
  CHECK(failed_with(tributary_log(s, 1, "loss", 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, "before tributary_start()"));
  REQUIRE(tributary_start(s) == TRIBUTARY_OK);

  CHECK(failed_with(tributary_log(s, 1, nullptr, 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  CHECK(failed_with(tributary_log(s, 1, "", 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, "name of 0 bytes"));
  CHECK(failed_with(tributary_log(s, 1, "\xff", 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, "UTF-8"));
  CHECK(failed_with(tributary_log(s, 1, std::string(65, 'x').c_str(), 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, "65 bytes"));
  for (int i = 0; i < 32; ++i) CHECK(tributary_log(s, 1, std::to_string(i).c_str(), 0.5, 1) == TRIBUTARY_OK);
  CHECK(tributary_log(s, 1, "0", 0.5, 1) == TRIBUTARY_OK);
  CHECK(failed_with(tributary_log(s, 1, "loss", 0.5, 1), TRIBUTARY_LIMIT, "'loss' is one too many"));
  CHECK(tributary_gradient(s, 3) == nullptr);
  CHECK(tributary_parameters(s, TRIBUTARY_ALL_TENSORS) == nullptr);
  CHECK(failed_with(tributary_ready(s, 3, 1, 0.1), TRIBUTARY_INVALID_ARGUMENT, "there is no tensor 3"));
  CHECK(failed_with(tributary_wait(s, 3, &step), TRIBUTARY_INVALID_ARGUMENT, "there is no tensor 3"));
  CHECK(failed_with(tributary_wait(s, 0, nullptr), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  for (const double rate : {-0.5, -2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    CHECK(failed_with(tributary_ready(s, 0, 1, rate), TRIBUTARY_INVALID_ARGUMENT, "tensor 'weight': the rate is"));
  }
  CHECK(failed_with(tributary_ready(s, 0, kMaxWeight + 1, 0.1), TRIBUTARY_INVALID_ARGUMENT, "over the limit"));
  CHECK(failed_with(tributary_keep(s, 1, nullptr, 4), TRIBUTARY_INVALID_ARGUMENT, "NULL"));
  const std::vector<char> large(kMaxRankState + 1);
  CHECK(tributary_keep(s, 1, large.data(), large.size()) == TRIBUTARY_LIMIT);

  CHECK(tributary_ready(s, 0, kMaxWeight, 0.0) == TRIBUTARY_OK);
  CHECK(failed_with(tributary_ready(s, 0, 1, 0.1), TRIBUTARY_WRONG_ROUND, "twice in a round"));
  CHECK(failed_with(tributary_wait(s, TRIBUTARY_ALL_TENSORS, &step), TRIBUTARY_WRONG_ROUND, "of tensor 'bias'"));
  CHECK(node.lanes.job()->tensor_words(0)[0].round.load() == 1);
  CHECK(node.lanes.job()->tensor_words(0)[1].round.load() == 0);
  CHECK(tributary_ready(s, 1, kMaxWeight, 0.0) == TRIBUTARY_OK);
  CHECK(tributary_ready(s, 2, kMaxWeight, 0.0) == TRIBUTARY_OK);
  node.lanes.complete(Round(1));
  // Tensor by tensor: what has been waited for may be ready again.
  REQUIRE(tributary_wait(s, 1, &step) == TRIBUTARY_OK);
  CHECK(step == TRIBUTARY_CONTINUE);
  CHECK(tributary_ready(s, 0, 1, 0.1) == TRIBUTARY_WRONG_ROUND);
  CHECK(wait(sessions[0]) == TRIBUTARY_CONTINUE);
  CHECK(ready_all(sessions[0]) == TRIBUTARY_OK);
}

TEST_CASE("structs of callers with older and newer headers are filled as far as both know them") {
  RunningNode node;
  const auto sessions = attach(node);
  tributary_view view;
  std::memset(&view, 0x55, sizeof view);
  view.size = offsetof(tributary_view, on_device);
  CHECK(tributary_get_view(sessions[0].get(), &view) == TRIBUTARY_OK);
  CHECK(view.size == offsetof(tributary_view, on_device));
  CHECK(view.fresh == 1);
  CHECK(view.on_device == 0x55555555u);
  CHECK(view.job == 0x5555555555555555u);
  struct {
    tributary_stats known;
    std::uint64_t newer;
  } stats{{.size = sizeof stats, .reduce_ns = 1, .bytes_pushed = 1, .bytes_pulled = 1}, 7};
  CHECK(tributary_get_stats(sessions[0].get(), &stats.known) == TRIBUTARY_OK);
  CHECK(stats.newer == 0);
  for (const std::size_t absurd : {std::size_t{0}, std::size_t{1} << 40}) {
    view.size = absurd;
    CHECK(failed_with(tributary_get_view(sessions[0].get(), &view), TRIBUTARY_INVALID_ARGUMENT, "tributary_view says"));
    tributary_gate gate{.size = absurd};
    CHECK(failed_with(tributary_get_gate(sessions[0].get(), 1, &gate), TRIBUTARY_INVALID_ARGUMENT, "tributary_gate"));
    stats.known.size = absurd;
    CHECK(tributary_get_stats(sessions[0].get(), &stats.known) == TRIBUTARY_INVALID_ARGUMENT);
  }
  CHECK(tributary_get_view(sessions[0].get(), nullptr) == TRIBUTARY_INVALID_ARGUMENT);
}

TEST_CASE("a resumed job has no initial values, and what was kept comes back") {
  RunningNode node;
  tributary_recovery_handle* recovery = tributary_recovery_handle_create();
  const void* state = nullptr;
  std::size_t size = 7;
  {
    const auto sessions = attach(node, 1, 1, Round(5), recovery);
    tributary_session* s = sessions[0].get();
    CHECK(view_of(sessions[0]).fresh == 0);
    CHECK(view_of(sessions[0]).resume_round == 5);
    CHECK(tributary_initial(s, 0) == nullptr);
    CHECK(contains(tributary_last_error(), "has parameters already"));
    CHECK(tributary_kept(s, &state, &size) == TRIBUTARY_OK);
    CHECK(size == 0);
    REQUIRE(tributary_start(s) == TRIBUTARY_OK);
    CHECK(tributary_keep(s, 6, "six", 3) == TRIBUTARY_OK);
    CHECK(ready_all(sessions[0]) == TRIBUTARY_OK);
    node.lanes.complete(Round(6));
    CHECK(wait(sessions[0]) == TRIBUTARY_CONTINUE);

    // The view ends for a member that was lost.
    CHECK(ready_all(sessions[0]) == TRIBUTARY_OK);
    node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(6), "server 1 was lost"});
    CHECK(wait(sessions[0]) == TRIBUTARY_RESTART);
    CHECK(std::string(tributary_stop_reason(s)) == "server 1 was lost");
  }
  const auto sessions = attach(node, 1, 2, Round(6), recovery);
  CHECK(tributary_kept(sessions[0].get(), &state, &size) == TRIBUTARY_OK);
  REQUIRE(size == 3);
  CHECK(std::memcmp(state, "six", 3) == 0);
  REQUIRE(tributary_start(sessions[0].get()) == TRIBUTARY_OK);
  CHECK(ready_all(sessions[0]) == TRIBUTARY_OK);
  node.server->on_control(StopJob{JobId(99), ViewId(2), StopKind::kStopped, Round(6), "asked to"});
  CHECK(wait(sessions[0]) == TRIBUTARY_VIEW_STOPPED);
  CHECK(std::string(tributary_stop_reason(sessions[0].get())) == "asked to");
  tributary_recovery_handle_destroy(recovery);
}

}  // namespace tributary::c_interface_test
