// A shard's counters (common/base/counters.h), by job; a lane has those of all its jobs.
#pragma once

#include <cstdint>

#include "common/base/counters.h"

namespace tributary {

template <class Cell>
struct ShardCounts {
  Cell pushes{}, push_bytes{}, answers{}, answer_bytes{}, steps{}, out_of_place_steps{}, shared_buffers{}, starved{},
      duplicates{}, rejected{}, held_frames{}, held_bytes{}, max_held_bytes{}, withheld{};

  static void visit(auto&& visit, auto&... sets) {
    using enum CountKind;
    visit({kTotal, "pushes", "Gradient pushes accepted."}, sets.pushes...);
    visit({kTotal, "push_bytes", "Bytes of accepted pushes."}, sets.push_bytes...);
    visit({kTotal, "answers", "Answers with parameters."}, sets.answers...);
    visit({kTotal, "answer_bytes", "Bytes of parameters in answers."}, sets.answer_bytes...);
    visit({kTotal, "steps", "Optimizer steps (one a chunk and round)."}, sets.steps...);
    visit({kTotal, "out_of_place_steps", "Steps that found a buffer still being sent or kept by a snapshot."},
          sets.out_of_place_steps...);
    visit({kTotal, "shared_buffers", "Buffers that those steps replaced."}, sets.shared_buffers...);
    visit({kTotal, "starved", "Steps put off because every buffer was still being sent or kept by a snapshot."},
          sets.starved...);
    visit({kTotal, "duplicates", "Pushes and initial values that had been received before."}, sets.duplicates...);
    visit({kTotal, "rejected", "Messages refused with an error to their author."}, sets.rejected...);
    visit({kNow, "held_frames", "Gradient frames that wait for other nodes."}, sets.held_frames...);
    visit({kNow, "held_bytes", "Bytes of gradient frames that wait for other nodes."}, sets.held_bytes...);
    visit({kMost, "max_held_bytes", "Most bytes of gradient frames held at once."}, sets.max_held_bytes...);
    visit({kNow, "withheld_answers", "Answers that wait for slower nodes (modes ssp and async)."}, sets.withheld...);
  }
};

using ShardStats = ShardCounts<std::uint64_t>;

}  // namespace tributary
