// The phases of a job on a node, each with what it needs and nothing else:
//
//   gathering --all local ranks attached--> joining --JobWelcome--> running
//   joining --JobWelcome, all-reduce on devices--> agreeing --every node's offer--> running
//   running --every rank detached--> left --StopJob, or what came of its state--> over
//   running --StopJob, a lost trainer--> over --trainers close--> (gone)
//
// A trainer that goes before the job runs takes it back to gathering, a view that ends while nodes agree to joining. A
// job that is refused is over.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "common/base/patience.h"
#include "common/wire/messages.h"
#include "worker/device_agreement.h"
#include "worker/node/job.h"
#include "worker/node/node_values.h"
#include "worker/state_delivery.h"

namespace tributary::attached {

struct Gathering {};
struct Joining {
  std::uint64_t next_ms = 0;   // try again then
  std::string missing{};       // for whom the job waits, as the coordinator said last
  std::uint64_t progress = 0;  // of those, likewise
};
struct Agreeing {
  JobWelcome welcome;
  NodeJobSpec spec;
  DeviceAgreement agreement;
  std::uint64_t until_ms = 0;
  bool stop_requested = false;
};
struct OrderedStop {  // clean, at a round of which answers are still to come
  StopJob stop;
  Patience answers;
};
struct FoundOver {  // by a lane, and the coordinator has still to say why
  StopJob stop;
  std::uint64_t until_ms = 0;
};
struct Giving {  // what one of its ranks keeps for all who have nothing, until the coordinator sends it round
  NodeRankState said;
  std::uint64_t next_ms = 0;  // say it again then
};
struct Running {
  std::shared_ptr<NodeJob> job;
  StateDelivery states;
  NodeValues values;
  std::set<std::uint32_t> gave_values{};  // local ranks whose initial values are there
  std::optional<Patience> drain{};        // the worker is to stop, until the coordinator says that its trainers may
  std::string stopped_by{};               // who asked for a stop, in words; empty: nobody, or not known
  Round begun{};                          // the view, after this round
  bool whole = false;                     // all parameters are there, and kept for the next view
  bool loaded = false;                    // servers have that round in their stores
  std::uint32_t giver = kNobody;          // JobWelcome::giver
  std::optional<Giving> giving{};
  std::optional<OrderedStop> ordered{};
  std::optional<FoundOver> found{};  // counts for nothing once a stop is ordered
  std::optional<Status> outcome{};   // as Over's, if it is heard before the last answers

  Round reached() const { return Round(job->min_version().value); }
};
struct Left {
  LeaveJob said;
  std::uint64_t next_ms = 0;  // say it again then
};
struct Over {
  StopJob end;                    // as the coordinator said, if it said so
  std::optional<Status> outcome;  // is the state that it ended with saved? Nothing: not known, after a good end only
  std::uint64_t next_ms = 0;      // until it is: say again then how far this node came; 0: not planned
};

using Phase = std::variant<Gathering, Joining, Agreeing, Running, Left, Over>;

}  // namespace tributary::attached
