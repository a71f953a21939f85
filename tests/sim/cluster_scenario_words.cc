// A scenario of a whole cluster in words.
#include "tests/sim/cluster_simulation.h"
#include "tests/sim/virtual_clock.h"

namespace tributary::sim {

const char* ClusterScenario::Fault::name() const {
  static constexpr const char* kNames[] = {"kill",
                                           "power off",
                                           "machine lost",
                                           "store lost",
                                           "machine and store lost for good",
                                           "chunk damaged",
                                           "record lost",
                                           "connections break",
                                           "cut off",
                                           "held up",
                                           "disk full",
                                           "node joins",
                                           "node leaves",
                                           "machine gone",
                                           "save",
                                           "save of what is committed",
                                           "restore",
                                           "ranks dealt anew",
                                           "flows forgotten",
                                           "stopped cleanly",
                                           "chunks dealt without"};
  return kNames[static_cast<int>(kind)];
}

std::string ClusterScenario::describe() const {
  std::string text = "seed " + std::to_string(seed) + ": " + std::to_string(servers) + " servers x " +
                     std::to_string(lanes) + " lanes, " +
                     (coordinators > 1 ? std::to_string(coordinators) + " may have the coordinator, " : std::string()) +
                     std::to_string(nodes) + " nodes x " + std::to_string(ranks) + " ranks, " +
                     std::to_string(parameters) + " parameters, " + std::to_string(rounds) + " rounds of " + optimizer +
                     ", push " + push + ", pull " + pull + ", mode " + word(mode);
  if (first_servers != servers || later_servers != servers) {
    text += ", on " + std::to_string(first_servers) + " servers, later " + std::to_string(later_servers);
  }
  if (mode == Mode::kSsp) text += " with staleness " + std::to_string(staleness);
  if (deadline) text += ", work-weighted rounds";
  if (large_states) text += rewinds ? ", large states, which it goes back for" : ", large states";
  if (gathers) text += ", values between rounds";
  if (one_ends) text += ", ended by rank 0";
  if (says_settings) text += ", settings of steps from the trainers";
  if (split != Split::kWhole) text += split == Split::kSlices ? ", two slices" : ", two stages";
  if (elastic) {
    text += ", elastic: " + std::to_string(first_nodes) + " nodes at first, at least " + std::to_string(min_nodes) +
            ", which wait " + std::to_string(rejoin_ms) + " ms for others";
  }
  if (clip_norm > 0.0) text += ", clipped at " + std::to_string(clip_norm);
  if (loss_scale != "none") text += ", loss scale " + loss_scale;
  text += (redo ? ", rings of " : ", no rings of ") + std::to_string(ring_rounds) + " rounds" +
          (gradients_move ? " that gradients are written into" : "") + ", snapshots every " +
          std::to_string(snapshot_s) + " s and " + std::to_string(snapshot_rounds) + " rounds" +
          (prepares ? " when there is memory" : "") + ", disk " + std::to_string(disk_step_ns / kMs) + " ms a step, " +
          std::to_string(work_ns / kMs) + " ms a round";
  if (checkpoint_s != 0) text += ", checkpoints every " + std::to_string(checkpoint_s) + " s";
  if (calm) text += ", calm";
  if (refuses_last) text += ", last answers are refused";
  if (shares_memory) text += ", answers in shared memory";
  if (spoils_uncommitted) text += ", a snapshot goes bad before it is committed";
  if (disorder.loses > 0.0) text += ", messages are lost";
  if (disorder.repeats > 0.0) text += ", messages come twice";
  if (disorder.overtakes > 0.0) text += ", messages overtake each other";
  if (slow_factor > 1) text += ", node " + std::to_string(slow_node) + " x " + std::to_string(slow_factor);
  for (const Fault& fault : faults) {
    text += "\n    at " + std::to_string(fault.at_ns / kMs) + " ms for " +
            (fault.lasts_ns == Fault::kForEver ? "ever" : std::to_string(fault.lasts_ns / kMs) + " ms") + ": " +
            fault.name();
    for (const std::uint32_t who : fault.who) text += " " + std::to_string(who);
  }
  if (kill_at_message > 0.0) text += "\n    somebody dies after 1 % of the control messages";
  for (const ClusterScenario& other : beside) text += "\n  and a second job, as of " + other.describe();
  return text;
}

}  // namespace tributary::sim
