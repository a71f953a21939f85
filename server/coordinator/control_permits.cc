#include "server/coordinator/control_permits.h"

#include <type_traits>
#include <variant>

namespace tributary {
namespace {

template <class M, class... Kinds>
inline constexpr bool kOneOf = (std::is_same_v<M, Kinds> || ...);

template <class M>
constexpr bool said_by(Role role) {
  if (kOneOf<M, Heartbeat, DrainRequest, ControlError, SnapshotDone>) return role != Role::kAdmin;
  if (kOneOf<M, ServerHello, ShardReady, ShardKept, RoundFacts, CheckpointDone>) return role == Role::kServer;
  if (kOneOf<M, WorkerHello, JoinJob, LeaveJob, PeerAddress, NodeRankState>) return role == Role::kWorker;
  return false;  // what only the coordinator says
}

}  // namespace

Status ControlPermits::check(const Identity& who, const ControlMessage& message) {
  return std::visit(
      [&]<class M>(const M& m) -> Status {
        if (!said_by<M>(who.role)) {
          return fail(ErrorCode::kInvalidArgument, "the key of " + in_words(who) +
                                                       " may not send this message: it is for another role; start each "
                                                       "daemon with a key of its own");
        }
        if constexpr (kOneOf<M, ServerHello, WorkerHello>) {
          if (m.key != who.key) {
            return fail(ErrorCode::kInvalidArgument,
                        in_words(who) + " says hello with another key than its connection has");
          }
        }
        if constexpr (kOneOf<M, WorkerHello>) {
          if (m.name != who.name) {
            return fail(ErrorCode::kInvalidArgument, "worker '" + m.name + "' shows the key of " + in_words(who) +
                                                         ": set [worker] name to the key's, or give it its own key");
          }
        }
        if constexpr (kOneOf<M, ServerHello, WorkerHello>) remember(who, m.incarnation);
        if constexpr (kOneOf<M, Heartbeat, DrainRequest>) return check_process(who, m.incarnation);
        return {};
      },
      message);
}

// Of one that has not said hello nobody has spoken yet: the core asks it to.
Status ControlPermits::check_process(const Identity& who, std::uint64_t incarnation) const {
  const auto known = processes_.find(incarnation);
  if (known == processes_.end() || known->second == who.key) return {};
  return fail(ErrorCode::kInvalidArgument, in_words(who) + " speaks for a process that has another key");
}

void ControlPermits::remember(const Identity& who, std::uint64_t incarnation) {
  if (processes_.size() >= kMaxProcesses && !processes_.contains(incarnation)) processes_.erase(processes_.begin());
  processes_.try_emplace(incarnation, who.key);
}

}  // namespace tributary
