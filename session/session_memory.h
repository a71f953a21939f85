// SessionMemory: the tensors that a rank holds, and the memory that its session shares with the worker of the node
// (session/shared/attach_region.h), mapped in this process: the parameters, this rank's gradients, the words with their
// progress, and the worker lanes' doorbells. Owner: the session. Pointers into it end with it, except those to
// parameters that a caller holds.
//
// A tensor has the number that all ranks declared it with, and another one in the node's layout (docs/model-parallel.md),
// by which it lies in memory.
//
// Parameters are read where the worker writes them, or, if a caller holds them, in a private view of this process: a
// write copies the page, and neither the worker nor another rank sees it. (Pinning copies it, too: held parameters must
// not be pinned, which a CUDA device asks for.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/assert.h"
#include "common/base/layout.h"
#include "common/system/shared_memory.h"
#include "common/wire/messages.h"
#include "session/shared/attach_region.h"
#include "session/trainer_device.h"

namespace tributary {

struct HeldTensor {
  std::size_t number = 0;                        // in the node's layout
  std::uint64_t offset = 0, elements = 0;        // of floats, in the node's flat space
  std::uint32_t first_chunk = 0, end_chunk = 0;  // that overlap it
  std::vector<std::uint16_t> lanes;              // of the worker, with these chunks
  bool gives_values = false;                     // in a fresh job: this rank is the first that holds it
};

class SessionMemory {
 public:
  SessionMemory() = default;
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;
  ~SessionMemory();

  // Takes the tensors, as declared, and which of them the reply gives to this rank. kMalformed: the reply's model ranks
  // or layout cannot be.
  Status hold(const AttachReply& reply, std::uint32_t nodes, std::uint32_t local_rank, std::vector<TensorSpec> tensors);
  // Maps the memory in the reply of the worker at `worker` (its socket), with the descriptors that came with it. kept:
  // receives the descriptor that the trainer is to hold (AttachReply::redo); may be null. kMalformed: sizes that this
  // layout does not have, or memory that is none of ours.
  Status map(const AttachReply& reply, std::vector<FileDescriptor> fds, const std::shared_ptr<TrainerDevice>& opener,
             FileDescriptor* kept, const std::string& worker);
  // Opens the memory lent on the device, if the reply has any. Errors of the opener.
  Status open_device(const AttachReply& reply);

  const Layout& layout() const { return *layout_; }  // of the node
  // This rank's tensors, in the layout's order.
  std::span<const HeldTensor> held() const { return held_; }
  // By the number that a tensor was declared with. Null: this rank does not hold it.
  const HeldTensor* find(std::size_t declared) const {
    return declared < places_.size() && places_[declared] != kNone ? &held_[places_[declared]] : nullptr;
  }
  const HeldTensor& at(std::size_t declared) const {  // REQUIRES: it does
    const HeldTensor* const tensor = find(declared);
    TRIB_ASSERT(tensor);
    return *tensor;
  }

  NodeHeader& node() const { return *node_; }
  ChunkWord* chunk_words() const { return chunk_words_; }
  TraceWindow& trace() const { return words_.header->trace; }
  // The round of the tensor's last ready(). Any thread.
  Round round_of(const HeldTensor& tensor) const {
    return Round(words_.tensors[tensor.number].round.load(std::memory_order_relaxed));
  }
  // The tensor's gradient of this round is final: the worker lanes look.
  void ready(const HeldTensor& tensor, Round round, std::uint64_t weight, const StepSettings& settings) const;

  std::span<float> initial(const HeldTensor& tensor) const {
    return {given_parameters_ + tensor.offset, tensor.elements};
  }
  std::span<const float> parameters(const HeldTensor& tensor) const {
    return {parameters_ + tensor.offset, tensor.elements};
  }
  // Moves parameters() to a private view that lives as long as its holder. REQUIRES: no call of parameters() before.
  Result<std::shared_ptr<const void>> hold_parameters();
  std::span<float> gradient(const HeldTensor& tensor, Round round) const;
  // Returns the memory of parameters and of this rank's gradients, whole pages.
  std::vector<std::span<std::byte>> host_memory() const;
  bool on_device() const { return device_gradients_ != nullptr; }
  float* device_gradient(const HeldTensor& tensor) const { return device_gradients_ + tensor.offset; }
  const float* device_parameters(const HeldTensor& tensor) const { return device_parameters_ + tensor.offset; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  Status map_ring(FileDescriptor fd, const std::string& worker);

  std::optional<Layout> layout_;
  std::vector<HeldTensor> held_;
  std::vector<std::uint32_t> places_;  // by declared number: in held_
  SharedMemory node_memory_, rank_memory_;
  std::shared_ptr<const SharedMemory> parameter_view_;
  SharedMemory ring_memory_;               // of AttachReply::ring
  std::vector<FileDescriptor> doorbells_;  // one a worker lane
  NodeHeader* node_ = nullptr;
  ChunkWord* chunk_words_ = nullptr;
  float* given_parameters_ = nullptr;  // where the worker reads initial values
  const float* parameters_ = nullptr;
  RankWords words_;
  float* gradients_ = nullptr;
  AttachReply::RingGradients ring_;  // of the gradients in ring_memory_; slots 0: they are in rank_memory_
  std::shared_ptr<TrainerDevice> opener_;
  float* device_gradients_ = nullptr;  // null: host memory
  float* device_parameters_ = nullptr;
};

}  // namespace tributary
