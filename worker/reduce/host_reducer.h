// HostReducer: the node reduction in host memory. Sums the local ranks' gradients in tree order and encodes the sum,
// block by block while it is in cache. One rank with fp32 on the wire has nothing to sum and nothing to encode: its own
// memory is the frame. Answers are decoded straight into the parameters that the ranks map.
//
// Frames live in one shared memory made when the job opens (bounded by the model's wire size), from which servers on
// this machine read them; nothing is allocated per chunk. Encodings that keep a residual have two areas per chunk, each
// a frame with a residual behind it, for even and for odd rounds: until the answer to round r has come the residual
// after round r-1 remains, because the job may end or continue at r-1 (the last round that all nodes completed). So
// they cost twice the model's fp32 size.
//
// With a RedoRing frames lie in the ring instead, each round's in a place of its own, and so do these areas; a frame is
// copied to its residual when both are wanted. One rank with fp32 either writes its gradients there itself, or its own
// memory is sent and the ring gets a copy.
//
// Thread rule: the owning lane's thread. Frames may still be read by ZeroMQ after release(); the lane keeps the
// reducer alive until ZeroMQ has given all of them back. A server that reads them has a mapping of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/layout.h"
#include "common/math/encoding.h"
#include "worker/reduce/node_reducer.h"
#include "worker/reduce/redo_ring.h"

namespace tributary {

class HostReducer final : public NodeReducer {
 public:
  // gradients: every local rank's flat array (Layout::flat_elements() values), in rank order; parameters: the node's
  // flat array. They and `chunks` outlive the reducer. One null pointer: that rank writes its gradients into the ring (REQUIRES: a
  // ring, fp32). model_ranks: of the ranks; empty: each holds everything. std::bad_alloc: there is no memory for the
  // frames.
  HostReducer(const LaneChunks& chunks, std::vector<const float*> gradients, float* parameters, EncodingSpec push,
              EncodingSpec pull, ReduceListener& listener, std::shared_ptr<RedoRing> ring = {},
              std::span<const std::uint32_t> model_ranks = {});

  void reduce(LaneChunk& chunk, bool with_residual) override;
  void deliver(LaneChunk& chunk, Version version, bool full, std::span<const std::byte> payload) override;
  void release(LaneChunk& chunk) override;
  void restore_residual(LaneChunk& chunk, std::span<const std::byte> values) override;
  std::span<const std::byte> residual(const LaneChunk& chunk) override;
  std::vector<const SharedMemory*> frames() const override;
  bool lends_gradients() const override {
    return sends_gradients(gradients_.size(), push_->id()) && !written_in_ring();
  }
  bool poll() override { return false; }
  std::uint64_t busy_ns() const override { return busy_ns_; }

  // Returns whether a node of `ranks` sends its only rank's plain gradient.
  static bool sends_gradients(std::size_t ranks, EncodingSpec push) { return ranks == 1 && push == EncodingId::kFp32; }
  // Returns the bytes of frames that this owns; 0 if it lends the trainer's.
  std::size_t frame_bytes() const { return frame_bytes_; }
  // Returns the same for the whole model on a node of `ranks`, over all lanes.
  static std::uint64_t frame_bytes_for(const Layout& layout, std::uint32_t ranks, EncodingSpec push);

 private:
  bool written_in_ring() const { return gradients_.front() == nullptr; }
  std::byte* area(const LaneChunk& chunk, Round round) const;
  float* residual_after(const LaneChunk& chunk, Round round) const;
  void find_holders(const LaneChunk& chunk);
  void encode_sum(const LaneChunk& chunk, std::byte* out);

  const Layout& layout_;
  const std::vector<const float*> gradients_;
  const std::vector<std::uint32_t> model_ranks_;
  float* const parameters_;
  const std::shared_ptr<const Encoding> push_, pull_;
  ReduceListener& listener_;
  const std::shared_ptr<RedoRing> ring_;
  SharedMemory frames_;
  std::vector<std::size_t> frame_at_;  // by LaneChunk::place: of its first frame
  std::size_t frame_bytes_ = 0;
  std::vector<const float*> holders_;   // scratch: the gradients of the ranks that hold a chunk
  std::vector<const float*> inputs_;    // scratch: a block of each of them
  std::vector<float> sum_;              // scratch: a block
  std::vector<std::uint32_t> scratch_;  // the encoding's
  std::uint64_t busy_ns_ = 0;
};

}  // namespace tributary
