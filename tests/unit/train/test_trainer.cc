// The trainer's rounds, stops and restarts, against a scripted Session instead of the real one
// (tests/unit/train/scripted_session.h).
#include <doctest/doctest.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "common/config/config_check.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/train/scripted_session.h"
#include "tests/unit/train/synthetic_images.h"
#include "train/standalone.h"
#include "train/trainer.h"

namespace tributary::train::trainer_test {
namespace {

constexpr std::uint64_t kRounds = 20;  // two epochs of ten, the last batch of each smaller

class Run {
 public:
  Run() : training_(synthetic(300, 1)), test_(synthetic(100, 2)) {
    World::current = &world;
    options_.job.name = "scripted";
    options_.job.optimizer.lr = 0.1;
    options_.job.optimizer["momentum"] = 0.9;
    options_.job.train.hidden = {16};
    options_.job.train.global_batch = 32;
    options_.job.train.epochs = 2;
  }
  ~Run() {
    World::current = nullptr;
    std::fclose(log_);
  }

  Result<RunSummary> train() {
    ProgressBar bar(log_, ProgressBar::Style::kOff, "");
    StopSignal stop_signal;
    return train_rank(options_, training_, &test_, bar, nullptr, stop_signal);
  }
  // Rounds of three local steps: four an epoch, the last of one step.
  void take_local_steps(bool keep_state) {
    options_.job.mode = Mode::kLocalSgd;
    options_.job.optimizer.lr = 0.7;
    options_.job.local.steps = 3;
    options_.job.local.keep_state = keep_state;
    options_.job.local.optimizer = default_optimizer("adamw");
    options_.job.train.epochs = 5;
  }
  void take_rate(double lr) { options_.job.optimizer.lr = lr; }
  void give_attach(std::chrono::seconds time) { options_.attach_timeout = time; }
  std::string log() const {
    std::string text(4096, '\0');
    std::rewind(log_);
    text.resize(std::fread(text.data(), 1, text.size(), log_));
    return text;
  }
  std::string reference_digest() const {
    const auto summary = required(train_standalone({.job = options_.job}, training_, &test_, nullptr));
    return summary.digest;
  }
  void expect_complete(const Result<RunSummary>& summary) const {
    REQUIRE(summary.has_value());
    CHECK(summary->rounds == kRounds);
    CHECK_FALSE(summary->stopped);
    CHECK(summary->digest == reference_digest());
    CHECK(summary->test.has_value());
    CHECK(world.finishes.back() == std::pair{LeaveKind::kFinished, kRounds});
  }

  World world;

 private:
  std::FILE* log_ = std::tmpfile();
  ImageSet training_, test_;
  TrainerOptions options_;
};

TEST_CASE("An undisturbed run ends in the reference's bits") {
  Run run;
  const auto summary = run.train();
  run.expect_complete(summary);
  CHECK(summary->rounds_here == kRounds);
  CHECK(summary->samples_here == 600);
  CHECK(summary->train.samples == 300);
  CHECK(summary->restarts == 0);
  CHECK(summary->bytes_pushed == 7);
  CHECK(run.world.attaches == 1);
}

TEST_CASE("A stop request ends the run after the complete round, and the next run ends in the reference's bits") {
  for (const std::uint64_t at :
       {1u, 7u, 10u, 19u}) {  // 10 ends an epoch: found while evaluating, not in a forward pass
    CAPTURE(at);
    Run run;
    run.world.states[at] = StepState::kStopRequested;
    const auto stopped = required(run.train());
    CHECK(stopped.stopped);
    CHECK(stopped.rounds == at);
    CHECK(run.world.finishes.back() == std::pair{LeaveKind::kStopped, at});
    run.world.states.clear();
    const auto resumed = run.train();
    run.expect_complete(resumed);
    CHECK(resumed->resumed_from == at);
    CHECK(resumed->rounds_here == kRounds - at);
  }
}

TEST_CASE("A stop request in the last round does not keep the job from finishing") {
  Run run;
  run.world.states[kRounds] = StepState::kStopRequested;
  run.expect_complete(run.train());
}

TEST_CASE("SIGTERM and SIGINT stop the run after the open round") {
  for (const int signal : {SIGTERM, SIGINT}) {
    Run run;
    run.world.on_round = [&](Round round) {
      if (round.value == 6) std::raise(signal);
    };
    const auto stopped = required(run.train());
    CHECK(stopped.stopped);
    CHECK(stopped.rounds == 6);
    CHECK(run.world.finishes.back() == std::pair{LeaveKind::kStopped, std::uint64_t{6}});
    CHECK(run.world.finish_message ==
          (signal == SIGINT ? "rank 0 was told to stop (SIGINT)" : "rank 0 was told to stop (SIGTERM)"));
    run.world.on_round = nullptr;
    run.expect_complete(run.train());
  }
}

TEST_CASE("the first signal is answered at once, with what is waited for") {
  Run run;
  std::string answer;
  SUBCASE("while a round is open") {
    run.world.on_round = [&](Round round) {
      if (round.value == 6) std::raise(SIGINT);
    };
    answer =
        "rank 0: SIGINT: stops when the parameters of round 6 are there (`tributary status` says why they are not); "
        "a second Ctrl-C ends this rank at once\n";
  }
  SUBCASE("while the state is saved") {
    run.world.on_finish = [] { std::raise(SIGTERM); };
    answer = "rank 0: SIGTERM: stops when the job's state is saved; a second Ctrl-C ends this rank at once\n";
  }
  required(run.train());
  const auto at = run.log().find(answer);
  REQUIRE_MESSAGE(at != std::string::npos, run.log());
  CHECK(run.log().find("a second Ctrl-C", at + answer.size()) == std::string::npos);
}

TEST_CASE("a signal while a trainer attaches stops it cleanly, and says what it waited for") {
  Run run;
  SUBCASE("for the first time") {
    run.world.on_attach = [] { std::raise(SIGINT); };
  }
  SUBCASE("again") {
    run.world.states[10] = StepState::kRestart;
    run.world.on_attach = [&] {
      if (run.world.attaches == 2) std::raise(SIGTERM);
    };
  }
  const auto summary = required(run.train());
  CHECK(summary.stopped);
  CHECK(summary.digest.empty());
  CHECK(testing::contains(run.log(), "rank 0: stopped: told to stop while it waited for node 1\n"));
  CHECK(run.world.finishes.empty());
}

TEST_CASE("When another rank left, the open round is void and the summary is about the round before") {
  Run run;
  run.world.states[9] = StepState::kStopped;
  const auto stopped = required(run.train());
  CHECK(stopped.stopped);
  CHECK(stopped.rounds == 8);
  CHECK(stopped.stop_reason == "as scripted");
  CHECK(stopped.digest.size() == 32);
  run.expect_complete(run.train());
}

TEST_CASE("A state that could not be saved is in the summary, with the reason") {
  Run run;
  run.world.saved_errors = {{ErrorCode::kStore, "server 1: disk full"}};
  const auto summary = run.train();
  run.expect_complete(summary);
  CHECK(summary->not_saved == "server 1: disk full");
  CHECK(testing::contains(to_text(*summary), "not saved: server 1: disk full"));
  CHECK(testing::contains(to_json(*summary), R"("not_saved":"server 1: disk full")"));
  CHECK(testing::contains(run.log(), "starting at round 0"));
}

TEST_CASE("A loss or parameters that are no longer finite are said, once, and are in the summary") {
  Run run;
  run.take_rate(1e30);
  const auto summary = required(run.train());
  CHECK_FALSE(summary.not_finite.empty());
  CHECK(summary.not_finite.find("the loss of round ") == 0);
  CHECK(to_json(summary).find(R"("not_finite":"the loss of round )") != std::string::npos);
  CHECK(testing::contains(to_text(summary), "not finite: the loss of round "));
  const std::string log = run.log();
  const std::size_t said = log.find("NOT FINITE: the loss of round ");
  REQUIRE(said != std::string::npos);
  CHECK(log.find("NOT FINITE", said + 1) == std::string::npos);
  CHECK(testing::contains(log, "a smaller optimizer.lr"));
}

TEST_CASE("A server that is lost before the last state is saved: the run ends once more") {
  Run run;
  run.world.saved_errors = {{ErrorCode::kUnavailable, "server 1 is lost"}};
  const auto summary = run.train();
  run.expect_complete(summary);
  CHECK(summary->not_saved.empty());
  CHECK(summary->restarts == 1);
}

TEST_CASE("After a restart the run goes on from the snapshot and ends in the reference's bits") {
  for (const std::uint64_t at : {1u, 3u, 4u, 11u, 20u}) {
    CAPTURE(at);
    Run run;
    run.world.states[at] = StepState::kRestart;
    const auto summary = run.train();
    run.expect_complete(summary);
    CHECK(summary->restarts == 1);
    CHECK(run.world.attaches == 2);
  }
}

TEST_CASE("A worker daemon that goes and comes back only costs a restart") {
  Run run;
  run.world.errors[6] = {ErrorCode::kUnavailable, "the worker is gone"};
  run.world.on_round = [&](Round round) {
    if (round.value == 6 && run.world.attaches == 1)
      run.world.attach_errors = {{ErrorCode::kUnavailable, "nobody listens"}};
  };
  const auto summary = run.train();
  run.expect_complete(summary);
  CHECK(summary->restarts == 2);
}

TEST_CASE("A worker daemon that is away is waited for within each attach, and not for longer than one may take") {
  Run run;
  run.world.errors[6] = {ErrorCode::kUnavailable, "the worker is gone"};
  bool in_vain = false;
  SUBCASE("it comes back") {}
  SUBCASE("it does not") {
    in_vain = true;
    run.give_attach(std::chrono::seconds(0));
    run.world.on_round = [&](Round round) {
      if (round.value == 6 && run.world.attaches == 1)
        run.world.attach_errors.assign(3, {ErrorCode::kUnavailable, "nobody listens"});
    };
  }
  const auto summary = run.train();
  CHECK(run.world.attaches == 2);
  CHECK(run.world.waited_for_worker == 2);
  REQUIRE(summary.has_value() == !in_vain);
  if (in_vain) CHECK(summary.error().message == "nobody listens");
}

TEST_CASE("A view that ends before its first round because another rank was lost costs a restart") {
  Run run;
  run.world.start_errors = {{ErrorCode::kUnavailable, "the job ended before its first round: rank 1 failed"}};
  const auto summary = run.train();
  run.expect_complete(summary);
  CHECK(summary->restarts == 1);
}

TEST_CASE("An error that attaching again cannot cure ends the run with its message") {
  Run run;
  run.world.errors[6] = {ErrorCode::kWrongLength, "push refused"};
  const auto summary = failure_of(run.train());
  CHECK(summary.message == "push refused");
  CHECK(run.world.attaches == 1);
}

TEST_CASE("The first attach is tried again while its time-out lasts, if somebody was lost meanwhile") {
  Run run;
  run.world.attach_errors = {{ErrorCode::kUnavailable, "the worker daemon was lost; attach again"}};
  SUBCASE("in time") {
    run.expect_complete(run.train());
    CHECK(run.world.attaches == 2);
  }
  SUBCASE("too late") {
    run.give_attach(std::chrono::seconds(0));
    const auto summary = failure_of(run.train());
    CHECK(summary.message == "the worker daemon was lost; attach again");
    CHECK(run.world.attaches == 1);
  }
  SUBCASE("what another try does not mend") {
    run.world.attach_errors = {{ErrorCode::kConfigMismatch, "another configuration"}};
    CHECK_FALSE(run.train().has_value());
    CHECK(run.world.attaches == 1);
  }
}

TEST_CASE("A job that is stopped before its first round counts as stopped, without a digest") {
  Run run;
  run.world.start_errors = {{ErrorCode::kStopped, "the job ended before its first round"}};
  const auto summary = required(run.train());
  CHECK(summary.stopped);
  CHECK(summary.rounds == 0);
  CHECK(summary.digest.empty());
}

TEST_CASE("An undisturbed run with local steps ends in the reference's bits, whether inner state is kept or not") {
  for (const bool keep : {true, false}) {
    Run run;
    run.take_local_steps(keep);
    const auto summary = run.train();
    run.expect_complete(summary);
    CHECK(summary->rounds_here == kRounds);
    CHECK(summary->samples_here == 1500);
    CHECK(summary->train.samples == 300);
  }
}

TEST_CASE("With local steps and inner state that begins anew, stops and restarts end in the reference's bits") {
  for (const std::uint64_t at : {1u, 4u, 6u, 19u}) {
    CAPTURE(at);
    Run run;
    run.take_local_steps(false);
    run.world.states[at] = StepState::kStopRequested;
    const auto stopped = required(run.train());
    CHECK(stopped.rounds == at);
    run.world.states.clear();
    run.expect_complete(run.train());
    CHECK_FALSE(testing::contains(run.log(), "begins anew"));

    Run lost;
    lost.take_local_steps(false);
    lost.world.states[at] = StepState::kRestart;
    const auto summary = lost.train();
    lost.expect_complete(summary);
    CHECK(summary->restarts == 1);
  }
}

TEST_CASE(
    "Inner state that is kept begins anew after a restart, in a new process as in this one, and the log says so") {
  std::string resumed_digest;
  {
    Run run;
    run.take_local_steps(true);
    run.world.states[8] = StepState::kStopRequested;
    const auto stopped = required(run.train());
    CHECK(stopped.rounds == 8);
    CHECK_FALSE(testing::contains(run.log(), "begins anew"));
    const auto resumed = required(run.train());
    CHECK(resumed.rounds == kRounds);
    CHECK(testing::contains(run.log(), "begins anew"));
    resumed_digest = resumed.digest;
  }
  Run run;
  run.take_local_steps(true);
  run.world.states[10] = StepState::kRestart;  // the snapshot is of round 8: round 9 is computed again, too
  const auto restarted = required(run.train());
  CHECK(restarted.restarts == 1);
  CHECK(restarted.digest == resumed_digest);
  CHECK(restarted.digest != run.reference_digest());
  CHECK(testing::contains(run.log(), "begins anew"));
}

TEST_CASE("A round that is computed again begins with the inner state it began with") {
  for (const std::uint64_t at : {1u, 5u, 9u}) {  // the round after a snapshot
    CAPTURE(at);
    Run run;
    run.take_local_steps(true);
    run.world.states[at] = StepState::kRestart;
    const auto summary = run.train();
    run.expect_complete(summary);
    CHECK(summary->restarts == 1);
    CHECK_FALSE(testing::contains(run.log(), "begins anew"));
  }
}

TEST_CASE("A job that is complete already is evaluated and finished again") {
  Run run;
  run.expect_complete(run.train());
  const auto again = run.train();
  run.expect_complete(again);
  CHECK(again->rounds_here == 0);
  CHECK(again->resumed_from == kRounds);
}

}  // namespace
}  // namespace tributary::train::trainer_test
