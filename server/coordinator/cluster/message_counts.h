// MessageCounts: number, bytes and key of the whole messages received over each connection. The receiving thread
// writes, without a lock except when a connection's key is new; another thread reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tributary {

class MessageCounts {
 public:
  struct Count {
    std::uint64_t messages = 0, bytes = 0;  // since there is this object: descriptors are used again
  };

  // Receiving thread. Descriptors without a previous ready() are not counted.
  void add(int descriptor, std::uint64_t bytes, std::string_view key) {
    Slot* slot = find(descriptor);
    if (!slot) return;
    const std::size_t hash = std::hash<std::string_view>()(key) | 1;
    if (slot->key_hash.load(std::memory_order_relaxed) != hash) {
      const std::lock_guard lock(mutex_);
      keys_[descriptor] = key;
      slot->key_hash.store(hash, std::memory_order_relaxed);
    }
    slot->bytes.store(slot->bytes.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    slot->messages.store(slot->messages.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Reading thread.
  void ready(int descriptor) {
    if (descriptor < 0 || descriptor >= kBlocks * kBlock) return;
    std::unique_ptr<Block>& block = owned_[static_cast<std::size_t>(descriptor / kBlock)];
    if (block) return;
    block = std::make_unique<Block>();
    blocks_[static_cast<std::size_t>(descriptor / kBlock)].store(block.get(), std::memory_order_release);
  }
  Count of(int descriptor) const {
    const Slot* slot = find(descriptor);
    if (!slot) return {};
    const std::uint64_t messages = slot->messages.load(std::memory_order_acquire);
    return {messages, slot->bytes.load(std::memory_order_relaxed)};
  }
  std::string key(int descriptor) const {
    const std::lock_guard lock(mutex_);
    const auto at = keys_.find(descriptor);
    return at == keys_.end() ? std::string() : at->second;
  }

 private:
  static constexpr int kBlock = 1024, kBlocks = 1024;
  struct Slot {
    std::atomic<std::uint64_t> messages{0}, bytes{0};
    std::atomic<std::size_t> key_hash{0};
  };
  using Block = std::array<Slot, kBlock>;

  Slot* find(int descriptor) const {
    if (descriptor < 0 || descriptor >= kBlocks * kBlock) return nullptr;
    Block* block = blocks_[static_cast<std::size_t>(descriptor / kBlock)].load(std::memory_order_acquire);
    return block ? &(*block)[static_cast<std::size_t>(descriptor % kBlock)] : nullptr;
  }

  std::array<std::atomic<Block*>, kBlocks> blocks_{};
  std::array<std::unique_ptr<Block>, kBlocks> owned_;
  mutable std::mutex mutex_;  // guards keys_
  std::map<int, std::string> keys_;
};

}  // namespace tributary
