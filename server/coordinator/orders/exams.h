// Exams: the examinations of the cluster's daemons (docs/doctor.md). It chooses the daemons, asks them, and reports the
// end to all of them; ExamKeeper holds the newest examination. CoordinatorCore owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/coordinator/orders/coordinator_context.h"
#include "server/coordinator/orders/exam_keeper.h"

namespace tributary {

class Exams {
 public:
  // context outlives it.
  explicit Exams(CoordinatorContext& context) : context_(context), keeper_(context.options.job_id_seed) {}

  // Returns the facts about the cluster that an examination gets.
  ClusterFacts cluster_facts() const;
  // Every daemon that is there looks at itself. The id to ask for with status().
  Result<std::uint64_t> begin(const ExamOrder& order, std::uint64_t now_ms);
  std::optional<ExamStatus> status(std::uint32_t id) const;
  void on(PeerId from, const Examined& m, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);
  // A key that is revoked measures no more.
  void expel(const std::string& key);

 private:
  Examine order() const;
  void send(const ExaminedDaemon& daemon, Examine order);
  void end();

  CoordinatorContext& context_;
  ExamKeeper keeper_;
  std::uint32_t ended_ = 0;  // the newest whose end was reported
};

}  // namespace tributary
