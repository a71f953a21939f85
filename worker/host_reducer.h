// HostReducer: the node reduction in host memory. Sums the local ranks' gradients in tree order and encodes the sum,
// block by block while it is in cache. One rank with fp32 on the wire has nothing to sum and nothing to encode: its own
// memory is the frame.
//
// Frames live in one allocation made when the job opens (bounded by the model's wire size); nothing is allocated per
// chunk. Thread rule: the owning lane's thread. Frames may still be read by ZeroMQ after release(); the lane keeps the
// reducer alive until ZeroMQ has given all of them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/encoding.h"
#include "common/layout.h"
#include "worker/node_reducer.h"

namespace tributary {

class HostReducer final : public NodeReducer {
 public:
  // gradients: every local rank's flat array (layout.flat_elements() values), in rank order; they outlive the reducer.
  HostReducer(std::shared_ptr<const Layout> layout, const std::vector<ChunkIndex>& chunks,
              std::vector<const float*> gradients, EncodingId encoding, ReduceListener& listener);

  void reduce(ChunkIndex chunk, Round round, std::uint64_t weight) override;
  void release(ChunkIndex chunk) override;
  bool poll() override { return false; }
  std::uint64_t busy_ns() const override { return busy_ns_; }

  // Bytes of frames that it owns; 0 if it lends the trainer's.
  std::size_t frame_bytes() const { return frame_bytes_; }
  // What a node of `ranks` will own for the whole model, over all lanes.
  static std::uint64_t frame_bytes_for(const Layout& layout, std::uint32_t ranks, EncodingId encoding);

 private:
  bool lends() const { return frames_ == nullptr; }
  std::span<const std::byte> encode_sum(std::uint32_t position, ChunkRange range);

  const std::shared_ptr<const Layout> layout_;
  const std::vector<const float*> gradients_;
  const Encoding& encoding_;
  ReduceListener& listener_;
  std::vector<std::uint32_t> local_;  // chunk index -> position
  std::vector<std::size_t> offsets_;  // of each position's frame
  std::vector<bool> lent_;            // between reduced() and release(): for the assertion that rounds do not overlap
  std::unique_ptr<std::byte[]> frames_;
  std::size_t frame_bytes_ = 0;
  std::vector<const float*> inputs_;  // scratch, one pointer a rank
  std::uint64_t busy_ns_ = 0;
};

}  // namespace tributary
