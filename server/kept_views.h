// KeptViews: states of views that are over, which stay in the lanes' memory for the job's next view.
//
// A load for a view that never began stays as well, even an unfinished one: the next view that begins at that snapshot
// uses it. It is not reported, because to others it equals the store's snapshot. The same holds for a view that began
// here and got no further.
//
// Pure. A part of ControlJobs. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/wire/messages.h"
#include "server/lane/lane_commands.h"
#include "server/server_job.h"

namespace tributary {

// The lanes' state of a job's last view. While a job is ending, it has both a KeptView and a ServerJob.
struct KeptView {
  ServerJobStatus status;  // when that view ended
  std::vector<LaneIndex> lanes;
  std::size_t parking = 0;    // lanes that have not reported their states
  bool all = true;            // all that have keep something
  bool asked = true;          // the coordinator waits for a ShardKept
  std::optional<Round> last;  // the state that a stop at this round left: goes when that is committed
  // The load that its view began with, or was to begin with. Lanes keep the state when it is there.
  std::shared_ptr<SnapshotLoad> load;
  Version min_version{~0ull}, max_version;
  std::uint64_t until_ms = 0;
  std::optional<StopJob> save;  // to be done when a snapshot of that round, which was given up, has ended

  const ViewPlan& view() const { return *status.view; }
  bool never_began() const { return load && !load->began; }
  bool whole() const { return parking == 0 && all && !never_began(); }  // a view can go on with it
  bool at(Round round) const { return min_version.value == round.value && max_version.value == round.value; }
  bool lies_on(const std::vector<ShardJob>& parts) const;  // these parts' lanes, and no others
  ShardKept report() const { return {view().job, view().view, all, min_version, max_version}; }
  // Returns the round that is lost with this state; nullopt: a snapshot has it, or the lanes have not all of it.
  std::optional<Round> unsaved() const;
};

class KeptViews {
 public:
  static constexpr std::uint64_t kKeepMs = 600'000;  // without an order from the coordinator

  void start(std::vector<LaneCommands*> lanes) { lanes_ = std::move(lanes); }

  // Keeps the lanes' state of a job whose view is over. They report it.
  void keep(const ServerJob& job, std::uint64_t now_ms);
  // Keeps what is, or was, loaded for a view that is over before it began. REQUIRES: lanes have it under this view.
  void keep_load(const ServerJob& job, std::uint64_t now_ms);
  // Keeps the state of the round at which the job stops. Returns the `park` of the order that stops the lanes.
  bool keep_last(const ServerJob& job, Round round, std::uint64_t now_ms);

  // Has the lanes keep a state whose load is there now. They report it.
  void park(const KeptView& state) const;

  // Returns the state if that was the last lane to report its own.
  const KeptView* lane_parked(JobId job, ViewId view, bool any, Version min, Version max);
  // Returns the reply to a coordinator that asks for the state; nullopt: lanes have yet to report, so the reply follows.
  std::optional<ShardKept> ask(JobId job, ViewId view, std::uint64_t now_ms);
  // All servers have a snapshot of that round. Returns a reply that was still owed, if the state goes with that.
  std::optional<ShardKept> committed(JobId job, Round round);
  void describe(ServerHello& hello);

  KeptView* find(JobId job);
  const std::map<JobId, KeptView>& all() const { return views_; }
  bool contains(JobId job) const { return views_.contains(job); }
  // The states of a job of this name under other ids.
  std::vector<JobId> before(const ViewPlan& view) const;
  bool any() const;  // more than what was loaded for a view that never began
  // Finds a load of an earlier view that this view can begin with; null: there is none.
  std::shared_ptr<SnapshotLoad> load_for(const ViewPlan& view) const;

  // Makes a job again of a state that is of this view and round; nullopt: it is not.
  std::optional<ServerJob> take_back(JobId job, ViewId view, Round round);
  void taken_up(JobId job) { views_.erase(job); }  // a view goes on with it: it is the lanes' again
  void drop(JobId job);                            // nobody needs it any more

 private:
  KeptView& begin(const ServerJob& job, std::uint64_t now_ms);

  std::vector<LaneCommands*> lanes_;
  std::map<JobId, KeptView> views_;
};

}  // namespace tributary
