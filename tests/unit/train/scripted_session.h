// A scripted Session for tests of the trainer: World is the job's servers and worker, with their scripted answers. It
// is linked in the place of tributary_session's, of which the linker then takes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "session/session.h"

namespace tributary {

using Tensors = std::vector<std::vector<float>>;

// Servers and worker of a job with one rank: what survives a session.
struct World {
  Round round;
  Tensors parameters, momentum;
  std::uint64_t snapshot_every = 4;
  Round snapshot;
  Tensors snapshot_parameters, snapshot_momentum;

  // Results of wait() once the round is there (kStopRequested), or instead of it (kStopped, kRestart, an error).
  std::map<std::uint64_t, StepState> states;
  std::map<std::uint64_t, Error> errors;
  std::vector<Error> attach_errors;  // of the next attaches, the last one first
  std::vector<Error> start_errors;
  std::vector<Error> saved_errors;      // of the next ends, the last one first
  std::function<void(Round)> on_round;  // when the first tensor of a round becomes ready
  std::function<void()> on_finish;      // when it has left, and before it is asked while the state is saved
  std::function<void()> on_attach;      // before the answer to one, and before it is asked whether it is to stop

  static inline World* current = nullptr;  // the one that sessions belong to

  int attaches = 0;
  int waited_for_worker = 0;  // attaches that would have
  std::vector<std::pair<LeaveKind, std::uint64_t>> finishes;
  std::string finish_message;

  void lose_what_is_not_in_the_snapshot() {
    round = snapshot;
    parameters = snapshot_parameters;
    momentum = snapshot_momentum;
  }
};

}  // namespace tributary
