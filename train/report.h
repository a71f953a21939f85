// The output of a training run: a progress bar on a terminal (plain lines elsewhere), a final summary, and one JSON
// object.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "train/pass.h"
#include "train/progress.h"

namespace tributary::train {

// The compute kind that ranks report (common/wire/compute_kinds.h). There is one: bits do not depend on the processor.
inline constexpr const char* kComputesWith = "tributary-train";

// Jobs with a gate: the decisions about the rounds that this process saw complete.
struct GateTotals {
  std::uint64_t rounds = 0, clipped = 0, skipped = 0;
  GateDecision last;
  void add(const GateDecision& decision);
};

struct RunSummary {
  std::string job;
  std::uint32_t rank = 0, world_size = 1, nodes = 1;
  bool standalone = false;
  std::string computes_with = kComputesWith;
  std::uint64_t model_bytes = 0;   // of fp32 parameters
  std::uint64_t rounds = 0;        // the parameters are those after this round
  std::uint64_t last_round = 0;    // of the whole job
  std::uint64_t resumed_from = 0;  // round this process began after; 0: from the start
  std::uint32_t restarts = 0;
  bool stopped = false;
  std::string stop_reason;         // its requester, as the worker reports it
  std::string not_saved;           // why the state that the job ended with is not durable; empty: it is
  std::string not_finite;          // which of the loss or the parameters is no number any more; empty: none
  BatchStats train;                // the last (maybe partial) epoch: this rank's samples, in standalone runs all
  std::optional<BatchStats> test;  // rank 0's evaluation at the end
  std::string digest;              // empty if the run was stopped where this rank had no complete round in hand
  std::uint64_t rounds_here = 0;   // trained by this process, counting those repeated after a restart
  std::uint64_t samples_here = 0;  // in these rounds, over all ranks; this rank's alone where it says `partial`
  StepSplit split;                 // total of these rounds
  std::uint64_t bytes_pushed = 0, bytes_pulled = 0;  // by this node
  GateTotals gate;
  // Modes ssp and async, of this node: answered chunks, and by how many clocks the slowest node was behind.
  bool clocks = false;
  std::uint64_t pulls = 0, staleness_sum = 0, staleness_max = 0;

  // Mode sync with a deadline: samples of this rank that were skipped for want of time.
  bool partial = false;
  std::uint64_t samples_left = 0;

  double seconds() const { return static_cast<double>(split.total_ns()) * 1e-9; }
  double mean_staleness() const {
    return pulls == 0 ? 0.0 : static_cast<double>(staleness_sum) / static_cast<double>(pulls);
  }
  double samples_per_second() const { return seconds() > 0.0 ? static_cast<double>(samples_here) / seconds() : 0.0; }
};

// One line:
//
//   {"job":...,"rank":...,"model_bytes":...,"rounds":...,"test_accuracy":...,"test_loss":...,"train_loss":...,"digest":...,
//    "samples":...,"samples_per_s":...,"step_split":{"compute_ms","reduce_ms","wait_ms"} per
//    round,"bytes_pushed","bytes_pulled",
//    "stopped","stop_reason","not_saved","not_finite","resumed_from","restarts",
//    "computes_with":"tributary-train"}
//
// with a deadline "samples_left" (by this rank; "samples" then counts this rank's alone), in jobs with a gate
// "gate":{"rounds","clipped","skipped","gradient_norm" of the last round,"loss_scale" of the next}, in modes ssp and async
// "staleness":{"pulls","mean","max"} (by how many clocks the slowest node was behind, over all chunks that this node
// was answered), and "train_loss_sum", "train_correct", "train_samples" so that a reader of all ranks' objects can
// aggregate by example counts. test_* are null on ranks that do not evaluate.
std::string to_json(const RunSummary& summary);
std::string to_text(const RunSummary& summary);

// Shows progress on `stream`. Thread rule: one thread at a time.
class ProgressBar {
 public:
  enum class Style { kOff, kLines, kBar };
  // kBar on a terminal, else kLines.
  static Style style_for(std::FILE* stream);

  // whose: what the loss is about, as "rank 0 of 4"; empty if it is about all ranks.
  ProgressBar(std::FILE* stream, Style style, std::string whose);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void round(const RoundReport& report, std::uint64_t rounds_per_epoch);
  // Prints a line that the user must see, also with kOff.
  void note(const std::string& text);

 private:
  void show(const RoundReport& report, std::uint64_t rounds_per_epoch);
  void clear();

  std::FILE* stream_;
  Style style_;
  std::string whose_;
  bool bar_shown_ = false;
  std::uint64_t shown_ns_ = 0;
  // Since the last line or redrawing.
  BatchStats stats_;
  StepSplit split_;
  std::uint64_t samples_ = 0;
  std::uint64_t rounds_ = 0;
};

}  // namespace tributary::train
