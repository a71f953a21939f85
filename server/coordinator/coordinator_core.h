// CoordinatorCore: rendezvous, views, snapshots and graceful stops of all jobs. Pure: control messages and ticks in,
// actions out through CoordinatorOutput. Lives in server 0, or in a worker of a cluster without servers; its durable
// state is the job registry, written through the output.
//
// This is the front: it knows who is there (Peers), and hands what they say to the jobs that it is about
// (CoordinatedJob) and to the saves and restores that people have ordered (Checkpoints).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/coordinator/cluster/loss.h"
#include "server/coordinator/job/coordinated_job.h"
#include "server/coordinator/orders/coordinator_context.h"
#include "server/coordinator/orders/diagnoses.h"
#include "server/coordinator/orders/trace_keeper.h"

namespace tributary {

class CoordinatorCore : private CheckpointJobs {
 public:
  static constexpr std::int64_t kMaxJobsOfWorker = 64;  // as many as a worker holds

  CoordinatorCore(const CoordinatorOptions& options, std::vector<JobRecord> registry, CoordinatorOutput& output);

  void on_message(PeerId from, const ControlMessage& message, std::uint64_t now_ms);
  // job: the name of the one that it was about, if that is known.
  void on_bad_message(PeerId from, const Error& error, const std::string& job = {});
  void tick(std::uint64_t now_ms);
  // How a save or a removal that was asked for (CoordinatorOutput) has ended.
  void saved(JobId job, const Status& status, std::uint64_t now_ms);
  void removed(JobId job, const Status& status, std::uint64_t now_ms);
  // For the core that comes after this one.
  KnownServers known_servers() const { return context_.known_servers(); }
  // CoordinatorOutput::adopt() could not save the records. (Else another core is there.)
  void not_adopted(const Error& error);
  // Stop everything cleanly (server 0 was told to stop); idle() tells when it is done.
  void drain(std::uint64_t now_ms);
  bool idle() const;

  // With which key somebody said hello over a connection, or as a process; none: nobody did, or is lost.
  std::optional<std::string> key_at(PeerId peer);
  std::optional<std::string> key_of(std::uint64_t incarnation);
  // Revokes a key: the processes that have it are lost.
  void expel(const std::string& key, const std::string& reason, std::uint64_t now_ms);

  // Orders (coordinator_orders.cc). A save or restore returns the id for checkpoint(), or why not.
  Result<std::uint64_t> save_checkpoint(const SaveOrder& order, std::uint64_t now_ms);
  Result<std::uint64_t> restore_checkpoint(const RestoreOrder& order, std::uint64_t now_ms);
  std::optional<CheckpointStatus> checkpoint(std::uint64_t id) const { return context_.checkpoints.status(id); }
  // The nodes of a job that runs are asked to leave it after their round. Its newest round.
  Result<std::uint64_t> stop_job(const std::string& name, const std::string& reason);
  // So many rounds to come of a job that runs are recorded. The id to ask for with trace() and trace_piece().
  Result<std::uint64_t> trace_job(const std::string& name, std::uint64_t rounds, std::uint64_t now_ms);
  std::optional<TraceStatus> trace(std::uint64_t id) const { return traces_.status(id); }
  std::optional<TracePiece> trace_piece(std::uint64_t id, std::size_t number) const {
    return traces_.piece(id, number);
  }
  // Every daemon that is there looks at itself. The id to ask for with diagnosis().
  Result<std::uint64_t> diagnose(const DiagnosisOrder& order, std::uint64_t now_ms) {
    return diagnoses_.begin(order, now_ms);
  }
  std::optional<DiagnosisStatus> diagnosis(std::uint32_t id) const { return diagnoses_.status(id); }
  // The chunks of a job go to the servers that are there, but for these. Returns how many servers that are.
  Result<std::uint64_t> deal_job(const std::string& name, const std::set<std::uint16_t>& without, std::uint64_t now_ms);
  // Deletes a job that is not in use, with all that anybody has of that name. How many there were.
  Result<std::uint64_t> remove_job(const std::string& name);

  using JobStatus = tributary::JobStatus;
  struct PeerStatus {
    std::string kind, name;
    std::uint64_t last_heard_ms = 0;
    bool alive = false;
    std::uint64_t bytes_in = 0, bytes_out = 0;  // payload since it started
    std::string clock;                          // how its time of day differs; "": it does not
  };
  std::vector<JobStatus> jobs() const;
  const JobRecord* record(const std::string& job) const;  // by its name; null: none; valid until anything happens
  std::vector<PeerStatus> peers() const;
  const LossCounts& losses() const { return losses_; }

 private:
  void on(PeerId from, const ServerHello& m, std::uint64_t now_ms);
  void on(PeerId from, const WorkerHello& m, std::uint64_t now_ms);
  void on(PeerId from, const Heartbeat& m, std::uint64_t now_ms);
  void on(PeerId from, const DrainRequest& m, std::uint64_t now_ms);
  void on(PeerId from, const JoinJob& m, std::uint64_t now_ms);
  void on(PeerId from, const LeaveJob& m, std::uint64_t now_ms);
  void on(PeerId from, const SnapshotDone& m, std::uint64_t now_ms);
  void on(PeerId from, const TracePart& m, std::uint64_t now_ms);
  void on(PeerId from, const ClusterQuestion&, std::uint64_t) {
    context_.output.send(from, diagnoses_.cluster_facts());
  }
  void on(PeerId from, const Diagnosed& m, std::uint64_t now_ms) { diagnoses_.on(from, m, now_ms); }
  void on(PeerId, const ControlError&, std::uint64_t) {}  // an error is never answered with an error
  template <class Other>
  void on(PeerId from, const Other& m, std::uint64_t now_ms);
  void moved(const Peers::Server& server, std::uint64_t now_ms);
  void note_clock(PeerClock& clock, const std::string& whose, const Heartbeat& m);
  void beat(Peers::Server& server, PeerId from, const Heartbeat& m, std::uint64_t now_ms);
  void beat(Peers::Worker& worker, PeerId from, const Heartbeat& m, std::uint64_t now_ms);

  Status join(CoordinatedJob& job, const JoinJob& m, const JobConfig& config, const Peers::Worker& worker,
              std::uint64_t now_ms);
  void open_if_complete(CoordinatedJob& job, std::uint64_t now_ms);
  JobId fresh_id();
  CoordinatedJob* job_with(JobId id);                  // nullptr: nobody knows it
  CoordinatedJob* job_in_view(JobId id, ViewId view);  // nullptr: it is not, or no view is open
  void lose_server(std::uint16_t index, const Loss& loss, std::uint64_t now_ms);
  void lose_worker(std::uint64_t incarnation, const Loss& loss, std::uint64_t now_ms);
  void save_scheduled(CoordinatedJob& job, std::uint64_t now_ms);
  Result<std::uint64_t> begin_save(const SaveOrder& order, const CoordinatedJob& job, std::uint64_t now_ms);
  void drop_unnamed_parts();
  void answer_drains(std::uint64_t now_ms);
  void look_at_servers(CoordinatedJob& job, std::uint64_t now_ms);
  Status deal(CoordinatedJob& job, const JobServers::Change& change, std::uint64_t now_ms);
  void send_to_traced(const CoordinatedJob& job, const TraceRounds& order);
  void look_at_trace(std::uint64_t now_ms);

  // coordinator_registry.cc
  void on(PeerId from, const JobRecordCopy& m, std::uint64_t now_ms);
  void on(PeerId from, const HeldRecord& m, std::uint64_t now_ms);
  void search(std::uint64_t now_ms);
  bool enough_to_search(std::uint64_t now_ms) const;
  void end_search(std::uint64_t now_ms);
  JobRecord renewed(JobRecord record) const;
  bool is_whole(const JobRecord& record) const;
  std::optional<Round> newest_committed(const JobRecord& record) const;
  void spread_copies(std::uint64_t now_ms);
  void tick_copies(std::uint64_t now_ms);
  void report_strangers(std::uint16_t index, const ServerHello& m);

  // coordinator_orders.cc
  const JobRecord* record_of(const std::string& job) const override;
  bool takes_snapshot(const std::string& job) const override;
  bool has_part(JobId job, const LargePart& large) const override;
  bool has_yet_to_reach(const std::string& job, Round round) const override;
  RankStates rank_states_at(const std::string& job, Round round) const override;
  bool state_comes(const std::string& job, Round round, bool whole, std::uint64_t now_ms) override;
  std::uint64_t state_taken(const std::string& job) const override;
  void part_is_there(JobId job, std::uint64_t now_ms) override;
  bool dealt_is_copied(const std::string& job, const JobRecord& record, std::uint64_t now_ms) override {
    return jobs_.at(job).dealt_is_copied(record, now_ms);
  }
  void loaded(const std::string& job, const JobRecord& record) override;
  void not_loaded(const std::string& job, const std::string& why, std::uint64_t now_ms) override;
  Result<JobRecord> record_to_restore(const Manifest& manifest, const JobConfig& config);
  // Returns the jobs that servers have under this name and that the registry does not know.
  std::set<JobId> strangers(const std::string& name) const;

  LossCounts losses_;
  TraceKeeper traces_;
  CoordinatorContext context_;
  JobId last_id_;  // given to a job. None comes twice: servers may have yet to drop what an earlier job had
  Diagnoses diagnoses_{context_};
  bool adopting_ = false;            // ordered
  std::uint64_t copies_due_ms_ = 0;  // what servers lack is sent, and what could not be adopted is tried again
  std::set<JobId> aside_;            // their records are of another version of the program, which may come back
  std::map<std::string, CoordinatedJob> jobs_;  // by name
};

}  // namespace tributary
