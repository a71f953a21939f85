// DiagnosisKeeper: the newest diagnosis that was ordered (docs/doctor.md): which daemons are asked, in which order, and
// their replies. Pure: the coordinator's core sends the due questions, and passes on replies and losses of daemons.
//
// Servers are first, because workers measure against them. Then come the workers: all at once, or one by one if they
// measure, so that no other worker loads the measured links. At the end, daemons that still measure must stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

struct DiagnosisOrder {
  bool measure = false;
  std::vector<std::string> paths;
};

// A daemon that is diagnosed, and its result.
struct DiagnosedDaemon {
  bool server = false;
  std::string name;  // "server 0", "worker w1"
  std::uint64_t incarnation = 0;
  std::string key;  // in a cluster with keys
  bool asked = false;
  std::optional<Diagnosed> said;
  std::string silent_because;                // no reply will come, and why
  std::uint64_t first_ms = 0, again_ms = 0;  // asked: when, and when once more
  bool done() const { return said || !silent_because.empty(); }
};

struct DiagnosisStatus {
  std::uint32_t id = 0;
  bool measure = false;
  bool over = false;
  std::uint16_t servers = 0;  // that the cluster has
  std::vector<DiagnosedDaemon> daemons;
};

class DiagnosisKeeper {
 public:
  static constexpr std::uint64_t kAgainMs = 5000;  // a question is repeated: a connection may have broken
  // A live daemon may take so long, and so long more for each server that it measures.
  static constexpr std::uint64_t kPatienceMs = 60'000, kPatienceForServerMs = 10'000;
  static constexpr std::size_t kMaxBytes = 64u << 20;  // of all replies; later ones are not kept

  // seed: of its numbers, random per process.
  explicit DiagnosisKeeper(std::uint64_t seed) : last_id_(static_cast<std::uint32_t>(seed)) {}

  // Takes the place of the one before. Its number.
  std::uint32_t begin(DiagnosisOrder order, std::vector<DiagnosedDaemon> daemons);
  bool under_way() const { return diagnosis_ && !diagnosis_->over; }
  const DiagnosisOrder& order() const { return diagnosis_->order; }  // REQUIRES: there is one
  std::uint32_t id() const { return diagnosis_ ? diagnosis_->id : 0; }
  const std::vector<DiagnosedDaemon>& daemons() const { return diagnosis_->daemons; }  // REQUIRES: there is one

  // Ends the diagnosis of every daemon with this key, measurements included. False: no daemon of it has the key.
  bool expel(const std::string& key);
  // Takes a reply; ignores one from a process that is not diagnosed.
  void on(std::uint64_t incarnation, const Diagnosed& said);
  // Returns the daemons to be asked now. gone: why that process is lost; empty: it is alive.
  std::vector<DiagnosedDaemon> tick(const std::function<std::string(std::uint64_t incarnation)>& gone,
                                    std::uint64_t now_ms);

  std::optional<DiagnosisStatus> status(std::uint32_t id) const;  // nothing: it is not the newest

 private:
  struct Diagnosis {
    std::uint32_t id = 0;
    DiagnosisOrder order;
    std::vector<DiagnosedDaemon> daemons;  // servers first
    bool over = false;
    std::size_t bytes = 0;
  };
  std::uint64_t patience_ms() const;

  std::optional<Diagnosis> diagnosis_;
  std::uint32_t last_id_;
};

}  // namespace tributary
