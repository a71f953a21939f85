// Reference-counted, aligned, bounded buffers for parameters, optimizer state and encoded answers.
//
// Ownership makes zero-copy and copy-on-write snapshots safe. A BufferRef keeps its bytes unchanged: that of a ZeroMQ
// message still being sent, of a process that reads the bytes in shared memory, or of the snapshot writer. The
// optimizer step writes in place only as the sole owner (BufferRef::unique), otherwise into a fresh buffer of the pool.
//
// The blocks lie in one shared memory whose address space is reserved whole at the first acquire(), and whose pages
// come and go with the blocks. So a process on the same machine that maps share() once reads every buffer of the pool
// at offset(), including later ones (docs/data-path.md).
//
// Memory for a block costs the kernel some 200 us a MiB (its pages are zeroed and mapped one by one). Before a burst,
// such as a snapshot's copy-on-write, another thread can pay that cost: expect() and prepare_one().
//
// Thread rule: acquire() on the pool's owning thread only. References may be copied, sent and dropped on any thread;
// the last drop puts the block on a lock-free free list. A mutex guards blocks without memory: only callers that enter
// the kernel anyway take it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/system/shared_memory.h"

namespace tributary {

class BufferPool;

namespace detail {
struct BufferBlock {
  std::atomic<std::uint32_t> refs{0};
  std::byte* data = nullptr;
  BufferPool* pool = nullptr;  // null: the block is in memory of its own
  BufferBlock* next_free = nullptr;
};
}  // namespace detail

class BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other) : block_(other.block_), size_(other.size_) {
    if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  BufferRef(BufferRef&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(block_, other.block_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~BufferRef() { reset(); }

  // Returns a buffer of no pool, in memory of its own: for values on their way between a disk and a pool. Contents
  // unspecified; throws std::bad_alloc.
  static BufferRef alone(std::size_t size);

  void reset();
  explicit operator bool() const { return block_ != nullptr; }
  // Returns whether this is the only owner, so that the bytes may be overwritten.
  // Acquire: the other owners' reads are over.
  bool unique() const { return block_->refs.load(std::memory_order_acquire) == 1; }
  std::size_t size() const { return size_; }
  std::byte* data() const { return block_->data; }
  std::span<std::byte> bytes() const { return {block_->data, size_}; }
  std::span<float> floats() const { return {reinterpret_cast<float*>(block_->data), size_ / sizeof(float)}; }

  // Gives the reference up as an opaque handle (for a C callback) that adopt() turns back into a BufferRef.
  void* release() && {
    size_ = 0;
    return std::exchange(block_, nullptr);
  }
  static BufferRef adopt(void* handle, std::size_t size = 0) {
    BufferRef ref;
    ref.block_ = static_cast<detail::BufferBlock*>(handle);
    ref.size_ = size;
    return ref;
  }

 private:
  friend class BufferPool;
  detail::BufferBlock* block_ = nullptr;
  std::size_t size_ = 0;
};

class BufferPool {
 public:
  // block_bytes: capacity of every buffer. max_blocks: the bound; acquire() returns an empty reference beyond it.
  BufferPool(std::size_t block_bytes, std::size_t max_blocks);
  ~BufferPool();  // REQUIRES: in_use() == 0
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // Returns a buffer of `size` <= block_bytes bytes, 64-byte aligned, contents unspecified; throws std::bad_alloc if
  // the machine has no memory. Starts of successive blocks are staggered by cache lines so that parameter, moment and
  // gradient arrays do not alias in the L1 cache (1.3 times faster optimizer steps, measured; see bench/RESULTS.md).
  BufferRef acquire(std::size_t size);

  // Returns free blocks to the system until at most `keep` blocks are allocated (after a snapshot's burst), `at_most`
  // of them in this call. True: there are none left to return. After share() there are none: the kernel makes no holes
  // in sealed memory, which is freed with the pool and its readers' mappings.
  bool trim(std::size_t keep, std::size_t at_most = std::numeric_limits<std::size_t>::max());

  // Announces that `blocks` beyond those in use will be acquired soon. Returns how many prepare_one() must prepare.
  std::size_t expect(std::size_t blocks);
  // One other thread: gets memory for one more block. False if no block needs memory, or there is no memory.
  bool prepare_one();

  // Blocks with references. Owning thread only.
  std::size_t in_use();
  // Blocks that acquire() could still give out now. Owning thread only.
  std::size_t available() { return max_blocks_ - in_use(); }

  // The pool's memory for another process, to be read. Owning thread only.
  Result<FileDescriptor> share();
  // Returns the place of `bytes` in that memory; none if they are not this pool's.
  std::optional<std::uint64_t> offset(std::span<const std::byte> bytes) const;

  std::size_t block_bytes() const { return block_bytes_; }
  std::size_t allocated_blocks() const { return allocated_.load(std::memory_order_relaxed); }
  std::size_t allocated_bytes() const;

 private:
  friend class BufferRef;
  void recycle(detail::BufferBlock* block);
  void take_recycled();
  void map();
  std::size_t place(const detail::BufferBlock* block) const;  // of its pages
  void back(const detail::BufferBlock* block) const;
  void create_block();
  detail::BufferBlock* take_vacant();

  const std::size_t block_bytes_;
  const std::size_t max_blocks_;
  const std::size_t stride_;                                  // from block to block, whole pages
  SharedMemory memory_;                                       // empty before the first acquire()
  bool shared_ = false;                                       // share() was called
  std::vector<std::unique_ptr<detail::BufferBlock>> blocks_;  // by place
  std::mutex vacant_mutex_;                                   // guards vacant_
  detail::BufferBlock* vacant_ = nullptr;                     // without memory
  std::atomic<bool> preparing_{false};                        // one block is on its way from vacant_ to free_
  std::atomic<std::size_t> allocated_{0};                     // with memory
  std::atomic<detail::BufferBlock*> recycled_{nullptr};       // pushed by any thread, emptied at once by the owner
  detail::BufferBlock* free_ = nullptr;                       // owner's
};

}  // namespace tributary
