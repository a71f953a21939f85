// Diagnoses: orders to diagnose the cluster's daemons (docs/doctor.md). It chooses the daemons, asks them, and reports
// the end to all of them; DiagnosisKeeper holds the newest diagnosis. CoordinatorCore owns it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/coordinator/orders/coordinator_context.h"
#include "server/coordinator/orders/diagnosis_keeper.h"

namespace tributary {

class Diagnoses {
 public:
  // context outlives it.
  explicit Diagnoses(CoordinatorContext& context) : context_(context), keeper_(context.options.job_id_seed) {}

  // Returns the facts about the cluster that a diagnosis gets.
  ClusterFacts cluster_facts() const;
  // Every daemon that is there looks at itself. The id to ask for with status().
  Result<std::uint64_t> begin(const DiagnosisOrder& order, std::uint64_t now_ms);
  std::optional<DiagnosisStatus> status(std::uint32_t id) const;
  void on(PeerId from, const Diagnosed& m, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);
  // A key that is revoked measures no more.
  void expel(const std::string& key);

 private:
  Diagnose order() const;
  void send(const DiagnosedDaemon& daemon, Diagnose order);
  void end();

  CoordinatorContext& context_;
  DiagnosisKeeper keeper_;
  std::uint32_t ended_ = 0;  // the newest whose end was reported
};

}  // namespace tributary
