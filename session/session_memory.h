// SessionMemory: the memory that a session shares with the worker of its node (session/shared/attach_region.h), mapped in this
// process: the parameters, this rank's gradients, the words with their progress, and the worker lanes' doorbells.
// Owner: the session. Pointers into it end with it, except those to parameters that a caller holds.
//
// Parameters are read where the worker writes them, or, if a caller holds them, in a private view of this process: a
// write copies the page, and neither the worker nor another rank sees it. (Pinning copies it, too: held parameters must
// not be pinned, which a CUDA device asks for.)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "common/system/shared_memory.h"
#include "common/wire/messages.h"
#include "session/shared/attach_region.h"
#include "session/trainer_device.h"

namespace tributary {

class SessionMemory {
 public:
  SessionMemory() = default;
  SessionMemory(const SessionMemory&) = delete;
  SessionMemory& operator=(const SessionMemory&) = delete;
  ~SessionMemory();

  // Maps the memory in the reply of the worker at `worker` (its socket), with the descriptors that came with it. kept:
  // receives the descriptor that the trainer is to hold (AttachReply::redo); may be null. kMalformed: sizes that this
  // layout does not have, or memory that is none of ours.
  Status map(const AttachReply& reply, const Layout& layout, std::vector<FileDescriptor> fds,
             const std::shared_ptr<TrainerDevice>& opener, FileDescriptor* kept, const std::string& worker);
  // Opens the memory lent on the device, if the reply has any. Errors of the opener.
  Status open_device(const AttachReply& reply);

  NodeHeader& node() const { return *node_; }
  ChunkWord* chunk_words() const { return chunk_words_; }
  TensorWord& word(std::size_t tensor) const { return words_.tensors[tensor]; }
  void say_ready(std::size_t tensor, Round round) const { words_.say(tensor, round.value); }
  TraceWindow& trace() const { return words_.header->trace; }
  void ring(std::uint16_t lane) const;  // the worker lane looks

  // Pointers to elements, as the layout numbers them.
  float* initial(std::uint64_t element) const { return given_parameters_ + element; }
  const float* parameters(std::uint64_t element) const { return parameters_ + element; }
  // Moves parameters() to a private view that lives as long as its holder. REQUIRES: no call of parameters() before.
  Result<std::shared_ptr<const void>> hold_parameters();
  float* gradient(std::uint64_t element, Round round) const;
  // Returns the memory of parameters and of this rank's gradients, whole pages. held: the tensors of the latter,
  // ascending.
  std::vector<std::span<std::byte>> host_memory(const Layout& layout, std::span<const std::size_t> held) const;
  bool on_device() const { return device_gradients_ != nullptr; }
  float* device_gradient(std::uint64_t element) const { return device_gradients_ + element; }
  const float* device_parameters(std::uint64_t element) const { return device_parameters_ + element; }

 private:
  Status map_ring(FileDescriptor fd, const Layout& layout, const std::string& worker);

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
  AttachReply::RingGradients places_;  // of the gradients in ring_memory_; slots 0: they are in rank_memory_
  std::shared_ptr<TrainerDevice> opener_;
  float* device_gradients_ = nullptr;  // null: host memory
  float* device_parameters_ = nullptr;
};

}  // namespace tributary
