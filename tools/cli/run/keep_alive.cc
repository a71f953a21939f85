#include "tools/cli/run/keep_alive.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/exit_codes.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::milliseconds kTogether{50};  // processes lost together are found together

constexpr std::chrono::seconds kAskPause{1}, kWaits{3};
constexpr std::uint32_t kMostBroughtBack = 3;

std::string name_of(const Daemon& daemon) {
  return daemon.name;
}
std::string name_of(const Trainer& trainer) {
  return trainer.name();
}

bool stopped(Trainer& trainer) {
  const auto status = trainer.process.poll();
  return status && status->signal == 0 && status->code == kExitStopped;
}

}  // namespace

// A daemon that was asked to stop ends with status 0: its job stops, and its trainers' exit status says so. A job that
// stops does not need its ranks again.
KeepAlive::Lost KeepAlive::lost() {
  const auto is_lost = [](Process& process) {
    const auto status = process.poll();
    return status && !status->ok() && status->code != kExitStopped;
  };
  Lost lost;
  const bool stopping = std::ranges::any_of(cluster_.trainers(), stopped);
  for (std::uint32_t i = 0; !stopping && i < cluster_.trainers().size(); ++i) {
    if (is_lost(cluster_.trainers()[i].process)) lost.trainers.push_back(i);
  }
  // Killed trainers come first: errors of others that ran then are attributed to that loss.
  std::ranges::stable_partition(
      lost.trainers, [&](std::uint32_t i) { return !RestartRules::is_error(*cluster_.trainers()[i].process.poll()); });
  for (auto* all : {&cluster_.servers(), &cluster_.workers()}) {
    for (Daemon& daemon : *all) {
      if (is_lost(daemon.process)) lost.daemons.push_back(&daemon);
    }
  }
  return lost;
}

Status KeepAlive::look() {
  if (lost().nobody()) return bring_back();
  std::this_thread::sleep_for(kTogether);
  const std::uint64_t rounds = rounds_();
  const bool training = cluster_.trainers_running();
  Lost who = lost();
  // Daemons first: errors of trainers that ran when one was lost are attributed to that.
  for (Daemon* daemon : who.daemons) {
    if (auto ok = may_start(*daemon, rounds); !ok) return ok;
  }
  for (const std::uint32_t i : who.trainers) {
    if (auto ok = may_start(cluster_.trainers()[i], rounds); !ok) return ok;
  }
  if (auto ok = start_again(std::move(who.daemons)); !ok) return ok;
  if (!training && who.trainers.empty()) return {};
  // The job continues with all of its ranks, also those that were done.
  for (std::uint32_t i = 0; i < cluster_.trainers().size(); ++i) {
    const auto status = cluster_.trainers()[i].process.poll();
    if (status && status->ok()) who.trainers.push_back(i);
  }
  return start_again(who.trainers);
}

Status KeepAlive::bring_back() {
  std::vector<std::uint32_t> ended;
  for (std::uint32_t i = 0; i < cluster_.trainers().size(); ++i) {
    const auto status = cluster_.trainers()[i].process.poll();
    if (status && status->ok()) ended.push_back(i);
  }
  const Clock::time_point now = Clock::now();
  if (ended.empty() || restarts_ == 0 || brought_back_ == kMostBroughtBack || now < asked_ + kAskPause) return {};
  if (!cluster_.trainers_running()) return {};
  asked_ = now;
  if (!waits_()) {
    waits_since_.reset();
    return {};
  }
  if (!waits_since_) waits_since_ = now;
  if (now < *waits_since_ + kWaits) return {};
  waits_since_.reset();
  ++brought_back_;
  tell_("a rank that was started again waits for " + std::to_string(ended.size()) +
        " that had come to the end; they are started again");
  return start_again(ended);
}

template <class One>  // Daemon, Trainer
Status KeepAlive::may_start(One& one, std::uint64_t rounds) {
  const ExitStatus status = *one.process.poll();
  const std::string who = name_of(one);
  if (const auto refusal = rules_.refusal(who, status, rounds)) {
    return fail(RestartRules::says_usage(status) ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                how_ended(one, status) + "\nit is not started again: " + *refusal);
  }
  tell_(who + " " + status.describe() + "; it is started again");
  return {};
}

Status KeepAlive::start_again(std::vector<Daemon*> daemons) {
  // The others are ready when the coordinator knows them.
  Daemon& coordinator = cluster_.coordinator_daemon();
  std::ranges::stable_partition(daemons, [&](const Daemon* daemon) { return daemon == &coordinator; });
  for (Daemon* daemon : daemons) {
    ++restarts_;
    const Status started = cluster_.restart(*daemon);
    if (started) continue;
    if (daemon == &coordinator || coordinator.process.running()) return started;
    daemon->process.terminate(std::chrono::milliseconds(0));  // the coordinator was lost meanwhile: once more after it
  }
  return {};
}

Status KeepAlive::start_again(const std::vector<std::uint32_t>& trainers) {
  for (const std::uint32_t trainer : trainers) {
    ++restarts_;
    if (auto ok = cluster_.restart_trainer(trainer); !ok) return ok;
  }
  return {};
}

}  // namespace tributary::cli
