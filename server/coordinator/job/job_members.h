// The nodes of a job: those that have joined, and those that its next view waits for. Nodes are known by the rank that
// their trainers were started with, for as long as the job lives; in a view they count from 0, in that order.
// Pure. Lives in the coordinator with its job.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/peers.h"

namespace tributary {

struct JobMember {
  std::uint64_t worker = 0;  // its incarnation: peers change their connection, never their incarnation
  JoinJob join;
  JobConfig config;  // join.job_json
  std::optional<LeaveJob> left;
  std::uint64_t answers = 0;  // from its last pace
  std::vector<Round> said;    // likewise
  bool leaving = false;       // elastic: its worker is being stopped, the job is not
};
using JobMembers = std::map<std::uint32_t, JobMember>;  // by node rank

// The member that this worker is; end(): none.
JobMembers::iterator member_of(JobMembers& members, std::uint64_t worker);
JobMembers::const_iterator member_of(const JobMembers& members, std::uint64_t worker);
// One that has left; nullptr: none has.
const JobMember* one_that_left(const JobMembers& members);
bool all_left(const JobMembers& members);
std::uint64_t answers_of(const JobMembers& members);  // that their nodes got, together
std::vector<std::uint32_t> nodes_of(const JobMembers& members);
std::uint32_t ranks_of(const JobMembers& members);  // in a view of them
// The number of nodes for an elastic job's first view: the highest that a present member gave. (A node that gave a
// higher one may have gone for good.)
std::uint32_t nodes_said(const JobMembers& members);
// The model ranks of all their ranks, in a view of them (OpenJob::model_ranks).
std::vector<std::uint32_t> model_ranks_of(const JobMembers& members);
// Can these nodes train the model together? kTopology: they hold parts of it that do not make up whole replicas; or the
// job's mode does not go with parts.
Status check_model_ranks(const JobMembers& members, const JobConfig& config);
// Rounds that all of them can keep the pushes of; 0: some keep none.
std::uint32_t redo_capacity(const JobMembers& members);

// Do nodes keep what they push until a snapshot covers it?
bool keeps_redo(const JobConfig& config, const JobMembers& members, const Peers& peers);

// Can such a node be part of any job? job: in words.
Status check_join(const JoinJob& join, const std::string& job);
bool same_join(const JoinJob& a, const JoinJob& b);
// Do tensors and configuration fit those of the job?
Status same_as(const std::string& job, const std::vector<TensorSpec>& tensors, const std::string& job_json,
               bool has_state, const JoinJob& join);
// Does it fit what the job's record has, if there is state, and the others that have joined? keeps: servers keep state
// of it in memory.
Status same_as_others(const std::string& job, const JobRecord& record, bool keeps, const JobMembers& members,
                      const JoinJob& join, const JobConfig& config);

// Adds what their ranks compute with. Returns a sentence when there are first two kinds, or a third, and so once in a
// job's life, whichever process restarts.
std::optional<std::string> add_kinds(ComputeKinds& kinds, const JobMembers& members);

// The nodes of the last view that an elastic job's next one waits for, and until when. Invariant: without a deadline
// no node is waited for.
class AwaitedNodes {
 public:
  // Its nodes attach again.
  void view_over(const JobMembers& members, std::uint64_t until_ms);
  // As the record knows them, without their workers.
  void recorded(const std::vector<std::uint32_t>& nodes, std::uint64_t until_ms);
  void forget() { *this = AwaitedNodes(); }
  void forget_node(std::uint32_t node) { nodes_.erase(node); }
  // Was there a node that this worker is?
  bool forget_worker(std::uint64_t worker);

  bool any() const { return until_ms_ != 0; }
  bool over(const JobMembers& members, std::uint64_t now_ms) const;
  std::vector<std::uint32_t> missing(const JobMembers& members) const;

 private:
  std::map<std::uint32_t, std::uint64_t> nodes_;  // with their workers; 0: not known
  std::uint64_t until_ms_ = 0;
};

// Are all there that the next view is to have? nodes: of a job that is not elastic.
bool gathered(const JobMembers& members, const AwaitedNodes& awaited, const JobConfig& config, std::uint32_t nodes,
              std::uint64_t now_ms);
// The missing nodes, in words; empty: none.
std::string missing_in_words(const JobMembers& members, const AwaitedNodes& awaited, const JobConfig& config,
                             std::uint32_t nodes);

}  // namespace tributary
