#include "tools/cli/keep_alive.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/exit_codes.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::milliseconds kTogether{50};  // who is lost at once is found at once

bool stopped(Trainer& trainer) {
  const auto status = trainer.process.poll();
  return status && status->signal == 0 && status->code == kExitStopped;
}

}  // namespace

// A daemon that was told to stop ends with status 0: its job stops, and its trainers say so.
bool KeepAlive::lost(Process& process) const {
  const auto status = process.poll();
  return status && !status->ok() && status->code != kExitStopped;
}

bool KeepAlive::anybody_lost() {
  const auto is_lost = [&](auto& one) { return lost(one.process); };
  return std::ranges::any_of(cluster_.servers(), is_lost) || std::ranges::any_of(cluster_.workers(), is_lost) ||
         std::ranges::any_of(cluster_.trainers(), is_lost);
}

Status KeepAlive::look() {
  if (!anybody_lost()) return {};
  std::this_thread::sleep_for(kTogether);
  const std::uint64_t rounds = rounds_();
  std::vector<std::uint32_t> trainers;
  bool stopping = false, all_ended = true;
  for (std::uint32_t i = 0; i < cluster_.trainers().size(); ++i) {
    Trainer& trainer = cluster_.trainers()[i];
    stopping = stopping || stopped(trainer);
    all_ended = all_ended && !trainer.process.running() && !lost(trainer.process);
    if (!lost(trainer.process)) continue;
    const ExitStatus status = *trainer.process.poll();
    if (auto ok = may_start(trainer.name(), status, rounds, how_ended(trainer, status)); !ok) return ok;
    trainers.push_back(i);
  }
  std::vector<Daemon*> daemons;
  for (auto* all : {&cluster_.servers(), &cluster_.workers()}) {
    for (Daemon& daemon : *all) {
      if (!lost(daemon.process)) continue;
      const ExitStatus status = *daemon.process.poll();
      if (auto ok = may_start(daemon.name, status, rounds, how_ended(daemon, status)); !ok) return ok;
      daemons.push_back(&daemon);
    }
  }
  if (auto ok = start_again(daemons); !ok) return ok;
  // A job that stops does not want its ranks back. One that goes on wants all of them, those that were done, too.
  if (stopping || all_ended) return {};
  for (std::uint32_t i = 0; i < cluster_.trainers().size(); ++i) {
    const auto status = cluster_.trainers()[i].process.poll();
    if (status && status->ok()) trainers.push_back(i);
  }
  return start_again(trainers);
}

Status KeepAlive::may_start(const std::string& who, const ExitStatus& status, std::uint64_t rounds,
                            const std::string& end) {
  const auto refusal = rules_.refusal(who, status, rounds);
  if (refusal) {
    const bool usage = status.signal == 0 && status.code == kExitUsage;
    return fail(usage ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
                end + "\nit is not started again: " + *refusal);
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
