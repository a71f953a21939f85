#include "server/coordinator/cluster/control_permits.h"

#include <type_traits>
#include <variant>

#include "common/config/job_json.h"
#include "common/security/key_folder.h"

namespace tributary {
namespace {

template <class M, class... Kinds>
inline constexpr bool kOneOf = (std::is_same_v<M, Kinds> || ...);

template <class M>
constexpr bool said_by(Role role) {
  if (kOneOf<M, Heartbeat, DrainRequest, ControlError, SnapshotDone, TracePart, ClusterQuestion, Diagnosed, WantPart,
             StatePart>)
    return role != Role::kAdmin;
  if (kOneOf<M, ServerHello, ShardReady, ShardKept, RoundFacts, CheckpointDone, JobRecordCopy, HeldRecord,
             SnapshotCopied, HeldParts, SeatReport>)
    return role == Role::kServer;
  if (kOneOf<M, WorkerHello, JoinJob, LeaveJob, PeerAddress, NodeRankState, RankValues>) return role == Role::kWorker;
  return false;  // only the coordinator sends it
}

// Checks that the identity may join the job. A job that cannot be read passes: its reader refuses it with the flaw.
Status check_joins(const Identity& who, const JoinJob& m) {
  if (who.jobs.empty()) return {};
  const auto config = job_from_json(m.job_json);
  if (!config || may_join(who, config->name)) return {};
  return fail(ErrorCode::kInvalidArgument,
              in_words(who) + " may not be a node of job '" + config->name +
                  "': [key] jobs in its .pub, in the coordinator's folder of authorized keys, names others");
}

bool is_of_server(const Identity& who, ShardIndex index) {
  return who.name == "server-" + std::to_string(index.value) ||
         (index == ShardIndex(0) && who.name == kCoordinatorName);
}

}  // namespace

std::optional<std::uint64_t> process_in(const ControlMessage& message) {
  return std::visit(
      []<class M>(const M& m) -> std::optional<std::uint64_t> {
        if constexpr (kOneOf<M, ServerHello, WorkerHello, Heartbeat, DrainRequest>) return m.incarnation;
        return std::nullopt;
      },
      message);
}

Status check_permitted(const Identity& who, const ControlMessage& message, const KeysOfHello& known) {
  return std::visit(
      [&]<class M>(const M& m) -> Status {
        const auto refused = [](const std::string& why) { return fail(ErrorCode::kInvalidArgument, why); };
        if (!said_by<M>(who.role)) {
          return refused("the key of " + in_words(who) +
                         " may not send this message: it is for another role; start each daemon with a key of its own");
        }
        if constexpr (kOneOf<M, ServerHello, WorkerHello>) {
          if (m.key != who.key) return refused(in_words(who) + " says hello with another key than its connection has");
        }
        if constexpr (kOneOf<M, SeatReport>) {
          if (!is_of_server(who, m.place)) {
            return refused(in_words(who) + " reports as server " + std::to_string(m.place.value));
          }
        }
        if constexpr (kOneOf<M, ServerHello>) {
          const std::string index = std::to_string(m.shard.value);
          if (!is_of_server(who, m.shard)) {
            return refused("server " + index + " shows the key of " + in_words(who) + ": server " + index +
                           "'s key has the name server-" + index + " (server 0's is the coordinator's): make it with " +
                           "`tributary keys new server-" + index + " --role server`");
          }
        }
        if constexpr (kOneOf<M, JoinJob>) {
          if (const Status joins = check_joins(who, m); !joins) return joins;
        }
        if constexpr (kOneOf<M, WorkerHello>) {
          if (m.name != who.name) {
            return refused("worker '" + m.name + "' shows the key of " + in_words(who) +
                           ": set [worker] name to the key's, or give it its own key");
          }
        }
        if (process_in(message) == 0) return refused("a process has no number");
        for (const auto& key : {known.peer, known.process}) {
          if (key && *key != who.key) return refused(in_words(who) + " speaks for a process that has another key");
        }
        return {};
      },
      message);
}

}  // namespace tributary
