// Coordinator: the shell around CoordinatorCore on server 0, or on the worker of a cluster without servers that serves
// it. Where several servers may have the coordinator (docs/failover.md), each has this shell, and one of them a core: the
// others' shells tell who has it (CoordinatorSeat). A thread of its own with a ROUTER socket, so that neither a shard that loads for seconds nor a slow disk of the
// snapshot writer keeps the cluster's heartbeats waiting. The registry is kept in that server's store; without one it
// lives as long as the process. A second thread writes it, and large parts, in order: a slow disk delays
// records and parts, and neither messages nor rounds.
//
// Thread rule: the core is guarded by a mutex, taken by the coordinator's thread for every message and tick and by the
// HTTP thread for a moment (status). Only the coordinator's thread lets the core act, because acting sends. Nothing of
// it is on the data path.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/waking_clock.h"
#include "common/daemon/command_queue.h"
#include "common/daemon/log.h"
#include "common/daemon/metrics.h"
#include "common/daemon/order_thread.h"
#include "common/security/authorized_keys.h"
#include "common/security/credentials.h"
#include "server/coordinator/cluster/admission.h"
#include "server/coordinator/cluster/control_permits.h"
#include "server/coordinator/cluster/coordinator_seat.h"
#include "server/coordinator/cluster/event_list.h"
#include "server/coordinator/cluster/job_registry.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/seat_links.h"

namespace tributary {

struct CoordinatorSettings {
  std::string address;        // to bind; tcp://ADDRESS:* picks a port
  std::uint16_t servers = 1;  // of the cluster; 0: it runs all-reduce jobs only
  std::uint32_t peer_timeout_ms = 10'000;
  Credentials credentials = {};
  ShardIndex home = {};             // the server whose process this is
  std::vector<std::string> places;  // the addresses of all servers that may have the coordinator; one or none: it has
  std::uint32_t heartbeat_ms = 1000;
};

class Coordinator final : private CoordinatorOutput {
 public:
  static constexpr std::uint64_t kTickMs = 100;
  // The longest step of its clock: peers count as silent only while it could receive from them.
  static constexpr std::uint64_t kLongestStepMs = 250;
  static constexpr int kBatch = 256;  // messages per turn between ticks
  // Control messages per peer that wait on either side. A daemon sends some every second.
  static constexpr int kHighWater = 1000;
  static constexpr std::size_t kMaxOrders = 64;     // that wait
  static constexpr std::size_t kMaxRecords = 4096;  // that wait to be saved or removed; more fail, and are tried again
  static constexpr std::uint64_t kRefreshKeysMs = 1000;
  // Attempts to save records that a core has found, until another server is to have the coordinator.
  static constexpr int kMaxFailures = 20;

  // Binds the address and starts the thread. registry may be null; it must outlive the coordinator. Errors:
  // kUnavailable if the address is taken, kStore if the registry cannot be read.
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorSettings& settings, JobRegistry* registry,
                                                    Logger logger);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  const std::string& endpoint() const { return endpoint_; }              // as bound
  bool holds() const { return holds_.load(std::memory_order_acquire); }  // else another server has it, or nobody
  // The one that has it, in words; empty: nobody is known to. Any thread.
  std::string holder_in_words() const;
  // Why this server takes no orders. Any thread. REQUIRES: several servers may have the coordinator.
  Error not_here() const;
  // This server's admin address, for those that ask here while another has the coordinator. Any thread.
  void tell_admin(std::string address);
  // For this machine's own daemons: reachable also if bound to all interfaces.
  const std::string& local_endpoint() const { return local_endpoint_; }

  // Any thread. Stop every job cleanly; drained() is true when that is done,
  // final snapshots of all servers included.
  void drain();
  bool drained() const;
  std::vector<CoordinatorCore::JobStatus> jobs() const;
  LossCounts losses() const;
  std::vector<CoordinatorCore::PeerStatus> peers() const;
  std::vector<EventList::Event> events() const;
  // Orders wait for the coordinator's thread, which acts on them at once; kTimeout if it does not.
  Result<std::uint64_t> save_checkpoint(SaveOrder order);
  Result<std::uint64_t> restore_checkpoint(RestoreOrder order);
  std::optional<CheckpointStatus> checkpoint(std::uint64_t id) const;
  Result<std::uint64_t> stop_job(std::string name);
  Result<std::uint64_t> deal_job(std::string name, std::set<std::uint16_t> without);
  Result<std::uint64_t> remove_job(std::string name);
  Result<std::uint64_t> trace_job(std::string name, std::uint64_t rounds);
  std::optional<TraceStatus> trace(std::uint64_t id) const;
  std::optional<TracePiece> trace_piece(std::uint64_t id, std::size_t number) const;
  Result<std::uint64_t> diagnose(DiagnosisOrder order);
  std::optional<DiagnosisStatus> diagnosis(std::uint32_t id) const;
  std::uint64_t malformed() const { return malformed_.value(); }
  std::uint64_t messages() const { return messages_.value(); }

 private:
  Coordinator(JobRegistry* registry, Logger logger, EventFd wake, EventFd written);
  Status bind(const CoordinatorSettings& settings);
  Status permit(PeerId from, const zmq::message_t& frame, const ControlMessage& message);  // with mutex_
  void refresh_keys(std::uint64_t now_ms);
  // With mutex_: which server has the coordinator.
  void tick_seat(std::uint64_t now_ms);
  void hear(const SeatReport& m, std::uint64_t now_ms);
  SeatReport report(std::uint64_t now_ms) const;
  void take(Term term);
  void leave();
  bool report_instead(PeerId from, const ControlMessage& message, std::uint64_t now_ms);
  void run();
  void receive_batch();
  Result<std::uint64_t> give(std::function<Result<std::uint64_t>(std::uint64_t now_ms)> order);
  std::uint64_t now_ms();  // on the coordinator's thread

  void send(PeerId to, const ControlMessage& message) override;
  void begin(std::vector<JobRecord> records);
  void name_core();
  void save(const JobRecord& record) override;
  void adopt(std::vector<JobRecord> records) override;
  void remove(JobId job) override;
  void on_disk(Work work, Done done) override;
  LargePartStore* large_parts() override { return registry_ ? &registry_->large_parts() : nullptr; }
  std::uint64_t wall_ms() const override { return tributary::wall_ms(); }
  void log(const std::string& line, LogLevel level) override;

  JobRegistry* const registry_;
  CoordinatorOptions options_;
  Logger logger_;
  RateLimitedLog noise_;
  std::string endpoint_, local_endpoint_, ipc_path_;
  Term own_term_;  // whose records the registry has when all are adopted
  CommandQueue<std::function<void()>> orders_;
  CommandQueue<std::function<void()>> written_;  // what records_ has done; at most as much as it may have to do
  std::atomic<bool> stopping_{false}, draining_{false}, drained_{false};
  LaneCounter messages_, malformed_;
  WakingClock clock_{kLongestStepMs};        // the thread's: the time that the core gets
  std::atomic<std::uint64_t> missed_ms_{0};  // that clock_ did not count so far

  std::atomic<bool> holds_{false};
  std::atomic<std::uint64_t> current_{0};  // options_.incarnation: work for the disk of earlier cores is void

  mutable std::mutex mutex_;  // guards events_, core_, seat_ and admin_
  EventList events_;
  std::unique_ptr<CoordinatorCore> core_;  // null: another server has the coordinator, or nobody
  std::optional<CoordinatorSeat> seat_;    // none: no other server may have it
  std::string admin_;
  std::uint32_t heartbeat_ms_ = 0;
  int failures_ = 0;             // of adopt(), in a row
  std::uint64_t report_ms_ = 0;  // the others are told then

  // In a cluster with keys.
  std::unique_ptr<AuthorizedKeys> authorized_;
  std::uint64_t refresh_ms_ = 0;

  zmq::context_t context_;
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<SeatLinks> links_;
  zmq::socket_t socket_;                  // the thread's
  std::unique_ptr<OrderThread> records_;  // null: there is no registry
  std::thread thread_;
};

}  // namespace tributary
