// WorkerLaneTrace: a worker lane's records of a traced job (docs/trace.md). Pure: times come as arguments. Thread rule:
// the lane's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/layout.h"
#include "common/wire/trace_buffer.h"

namespace tributary {

class WorkerLaneTrace {
 public:
  // Chunks come as the node's layout numbers them. reduced_ns: the lane's time of reducing so far.
  WorkerLaneTrace(std::shared_ptr<const Layout> layout, std::uint64_t reduced_ns, std::shared_ptr<TraceBuffer> buffer)
      : layout_(std::move(layout)), buffer_(std::move(buffer)), reduced_ns_(reduced_ns), arrived_(layout_->chunks()) {}

  void ready(ChunkIndex chunk, Round round, std::uint64_t now_ns) {
    record(TraceKind::kReady, chunk, round, now_ns, now_ns);
  }
  // reduced_ns: as in the constructor. Its growth is this chunk's time.
  void reduced(ChunkIndex chunk, Round round, std::uint64_t now_ns, std::uint64_t reduced_ns) {
    record(TraceKind::kReduced, chunk, round, now_ns - std::min(now_ns, reduced_ns - reduced_ns_), now_ns);
    reduced_ns_ = reduced_ns;
    round_ = round;
  }
  void sent(ChunkIndex chunk, Round round, std::uint64_t now_ns) {
    record(TraceKind::kSent, chunk, round, now_ns, now_ns);
  }
  // By an acknowledgement. A server may name any chunk.
  void acknowledged(ChunkIndex chunk, Round round, std::uint64_t now_ns) {
    if (chunk.value < arrived_.size()) record(TraceKind::kAcknowledged, chunk, round, now_ns, now_ns);
  }
  // An answer is there, of any chunk as well.
  void arrived(ChunkIndex chunk, std::uint64_t now_ns) {
    if (chunk.value < arrived_.size()) arrived_[chunk.value] = now_ns;
  }
  // Trainers see this version now.
  void delivered(ChunkIndex chunk, Version version, std::uint64_t now_ns) {
    record(TraceKind::kArrived, chunk, Round(version.value), std::min(arrived_[chunk.value], now_ns), now_ns);
  }
  // Nothing of the round that was reduced last is under way any more. Arguments: the pace meter's totals by then.
  void metered(std::uint64_t compute_ns, std::uint64_t network_ns) {
    record(TraceKind::kMeterCompute, ChunkIndex(), round_, 0, compute_ns);
    record(TraceKind::kMeterReduce, ChunkIndex(), round_, 0, reduced_ns_);
    record(TraceKind::kMeterNetwork, ChunkIndex(), round_, 0, network_ns);
  }

 private:
  void record(TraceKind kind, ChunkIndex chunk, Round round, std::uint64_t begin_ns, std::uint64_t end_ns) {
    buffer_->record(kind, layout_->in_whole(chunk), round, begin_ns, end_ns);
  }

  const std::shared_ptr<const Layout> layout_;
  const std::shared_ptr<TraceBuffer> buffer_;
  std::uint64_t reduced_ns_;
  Round round_;                         // reduced last
  std::vector<std::uint64_t> arrived_;  // by chunk
};

}  // namespace tributary
