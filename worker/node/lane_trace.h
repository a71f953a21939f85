// WorkerLaneTrace: a worker lane's records of a traced job (docs/trace.md). Pure: times come as arguments. Thread rule:
// the lane's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/wire/trace_buffer.h"
#include "worker/reduce/lane_chunk.h"

namespace tributary {

class WorkerLaneTrace {
 public:
  // chunks: how many the lane has. reduced_ns: the lane's time of reducing so far.
  WorkerLaneTrace(std::size_t chunks, std::uint64_t reduced_ns, std::shared_ptr<TraceBuffer> buffer)
      : buffer_(std::move(buffer)), reduced_ns_(reduced_ns), arrived_(chunks) {}

  void ready(const LaneChunk& chunk, std::uint64_t now_ns) {
    buffer_->record(TraceKind::kReady, chunk.whole, chunk.gradient.round, now_ns, now_ns);
  }
  // reduced_ns: as in the constructor. Its growth is this chunk's time.
  void reduced(const LaneChunk& chunk, std::uint64_t now_ns, std::uint64_t reduced_ns) {
    round_ = chunk.gradient.round;
    buffer_->record(TraceKind::kReduced, chunk.whole, round_, now_ns - std::min(now_ns, reduced_ns - reduced_ns_),
                    now_ns);
    reduced_ns_ = reduced_ns;
  }
  void sent(const LaneChunk& chunk, Round round, std::uint64_t now_ns) {
    buffer_->record(TraceKind::kSent, chunk.whole, round, now_ns, now_ns);
  }
  void acknowledged(const LaneChunk& chunk, Round round, std::uint64_t now_ns) {
    buffer_->record(TraceKind::kAcknowledged, chunk.whole, round, now_ns, now_ns);
  }
  // An answer is there.
  void arrived(const LaneChunk& chunk, std::uint64_t now_ns) { arrived_[chunk.place] = now_ns; }
  // Trainers see this version now.
  void delivered(const LaneChunk& chunk, Version version, std::uint64_t now_ns) {
    buffer_->record(TraceKind::kArrived, chunk.whole, Round(version.value), std::min(arrived_[chunk.place], now_ns),
                    now_ns);
  }
  // Nothing of the round that was reduced last is under way any more (of no chunk in particular). Arguments: the pace meter's totals by then.
  void metered(std::uint64_t compute_ns, std::uint64_t network_ns) {
    buffer_->record(TraceKind::kMeterCompute, ChunkIndex(), round_, 0, compute_ns);
    buffer_->record(TraceKind::kMeterReduce, ChunkIndex(), round_, 0, reduced_ns_);
    buffer_->record(TraceKind::kMeterNetwork, ChunkIndex(), round_, 0, network_ns);
  }

 private:
  const std::shared_ptr<TraceBuffer> buffer_;
  std::uint64_t reduced_ns_;
  Round round_;                         // reduced last
  std::vector<std::uint64_t> arrived_;  // by LaneChunk::place
};

}  // namespace tributary
