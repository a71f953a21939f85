// RegistryCopies: which servers have copies of the registry's records, and how new these are (docs/recovery.md, "The
// registry"). Records of all-reduce jobs have none: their state lies on nodes. Pure. A part of the coordinator's context.
//
// First it searches: a copy may be newer than the registry's record, which was lost with its disk. The coordinator asks
// for such copies, one at a time. Later it knows whom to send which record.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"

namespace tributary {

class RegistryCopies {
 public:
  static constexpr std::uint64_t kRepeatMs = 10'000;  // until it is answered, a question or a copy is sent again
  static constexpr int kTries = 3;                    // at a copy that its server cannot read
  static constexpr int kRepeats = 6;                  // of a question that is not answered

  // others: there are servers but the coordinator's own. moved: another server had the coordinator last, so that this
  // registry may lack jobs.
  RegistryCopies(bool others, bool moved) : searching_(others), moved_(moved) {}
  // The registry has this record, of a job on servers or of an all-reduce job. Before any server is met.
  void knows(const JobFacts& record, bool on_servers) {
    known_[record.job] = record.edition;
    none_on_servers_ = none_on_servers_ && !on_servers;
  }

  // ---- The copies of each server ----
  void meet(std::uint16_t server, const std::vector<HeldRecord>& has);
  void lose(std::uint16_t server);
  void holds(std::uint16_t server, const HeldRecord& copy) { copies_[server][copy.job].held = copy.edition; }
  void forget(JobId job);
  bool has(std::uint16_t server, JobId job) const;
  // Whether the server lacks this edition, and it was not sent in the last kRepeatMs.
  bool lacks(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms) const;
  void sent(std::uint16_t server, const JobFacts& record, std::uint64_t now_ms);

  // ---- The search ----
  bool searching() const { return searching_; }
  // The next question, if none is open or its answer is late. Nothing: all that is wanted is there, or is asked for.
  std::optional<std::pair<std::uint16_t, WantRecord>> question(std::uint64_t now_ms);
  // The answer. Errors: kStore, kStoreFormat: that copy is left out.
  Status take(std::uint16_t server, const JobRecordCopy& copy);
  // All servers were met: is nothing wanted any more?
  bool complete() { return !asked_ && wanted().empty(); }
  const std::map<JobId, JobRecord>& found() const { return found_; }
  void end_search();

 private:
  struct Wanted {
    std::uint16_t server = 0;
    std::uint64_t edition = 0;
  };
  const std::map<JobId, Wanted>& wanted();

  struct Copy {
    std::optional<std::uint64_t> held, sent;  // editions
    std::uint64_t sent_ms = 0;
  };
  std::map<std::uint16_t, std::map<JobId, Copy>> copies_;  // by server
  std::map<JobId, std::uint64_t> known_;                   // editions in the registry when it was read
  bool searching_;
  bool none_on_servers_ = true;
  const bool moved_;
  std::optional<std::map<JobId, Wanted>> wanted_;  // none: to be made again
  struct Asked {
    std::uint16_t server;
    JobId job;
    std::uint64_t repeat_ms = 0;
    int tries = 0, repeats = 0;
  };
  std::optional<Asked> asked_;
  std::map<JobId, JobRecord> found_;
};

}  // namespace tributary
