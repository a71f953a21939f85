#include "common/system/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <new>
#include <thread>

#include "common/base/assert.h"
#include "common/base/round_up.h"

namespace tributary {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2u << 20;
// Consecutive blocks start this many cache lines apart modulo a page. 5 is coprime to 64: all 64 colours are used.
constexpr std::size_t kStaggerLines = 5;

}  // namespace

BufferRef BufferRef::alone(std::size_t size) {
  auto block = std::make_unique<detail::BufferBlock>();
  block->data = static_cast<std::byte*>(::operator new (size, std::align_val_t{kCacheLine}));
  block->refs.store(1, std::memory_order_relaxed);
  return adopt(block.release(), size);
}

void BufferRef::reset() {
  if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    if (block_->pool) {
      block_->pool->recycle(block_);
    } else {
      ::operator delete (block_->data, std::align_val_t{kCacheLine});
      delete block_;
    }
  }
  block_ = nullptr;
  size_ = 0;
}

BufferPool::BufferPool(std::size_t block_bytes, std::size_t max_blocks)
    : block_bytes_(block_bytes), max_blocks_(max_blocks), stride_(round_up(block_bytes + kPage - kCacheLine, kPage)) {}

// Counting free blocks, not references: the last drop touches the pool after the count has reached 0.
BufferPool::~BufferPool() {
  TRIB_ASSERT(in_use() == 0);
}

// Maps at the first acquire(), which may throw: the constructor has no way to report an error.
void BufferPool::map() {
  if (memory_) return;
  auto memory = SharedMemory::create_sparse(std::max<std::size_t>(max_blocks_, 1) * stride_, "buffers",
                                            SharedMemory::Peers::kRead);
  if (!memory) throw std::bad_alloc();
  memory_ = std::move(*memory);
  if (stride_ >= kHugePage) ::madvise(memory_.data(), memory_.size(), MADV_HUGEPAGE);
}

std::size_t BufferPool::place(const detail::BufferBlock* block) const {
  return static_cast<std::size_t>(block->data - memory_.data()) / stride_ * stride_;
}

void BufferPool::back(const detail::BufferBlock* block) const {
  if (!memory_.reserve(place(block), stride_)) throw std::bad_alloc();
}

void BufferPool::create_block() {
  map();
  auto block = std::make_unique<detail::BufferBlock>();
  const std::size_t colour = blocks_.size() * kStaggerLines % (kPage / kCacheLine);
  block->data = memory_.data() + blocks_.size() * stride_ + colour * kCacheLine;
  block->pool = this;
  blocks_.push_back(std::move(block));
  const std::lock_guard lock(vacant_mutex_);
  blocks_.back()->next_free = std::exchange(vacant_, blocks_.back().get());
}

detail::BufferBlock* BufferPool::take_vacant() {
  const std::lock_guard lock(vacant_mutex_);
  detail::BufferBlock* block = vacant_;
  if (block) vacant_ = std::exchange(block->next_free, nullptr);
  return block;
}

BufferRef BufferPool::acquire(std::size_t size) {
  TRIB_ASSERT(size <= block_bytes_);
  if (!free_) take_recycled();
  if (!free_) {
    detail::BufferBlock* block = take_vacant();
    if (!block && blocks_.size() < max_blocks_) {
      create_block();
      block = take_vacant();
    }
    if (block) {
      try {
        back(block);
      } catch (const std::bad_alloc&) {
        const std::lock_guard lock(vacant_mutex_);
        block->next_free = std::exchange(vacant_, block);
        throw;
      }
      allocated_.fetch_add(1, std::memory_order_relaxed);
      free_ = block;
    } else {
      // The last one may be with prepare_one(), for some hundred microseconds.
      while (preparing_.load(std::memory_order_acquire) && !free_) {
        std::this_thread::yield();
        take_recycled();
      }
      if (!free_) take_recycled();
      if (!free_) return {};
    }
  }
  detail::BufferBlock* block = free_;
  free_ = block->next_free;
  block->next_free = nullptr;
  block->refs.store(1, std::memory_order_relaxed);
  return BufferRef::adopt(block, size);
}

std::size_t BufferPool::expect(std::size_t blocks) {
  const std::size_t unused = allocated_blocks() - in_use();
  if (blocks <= unused) return 0;
  const std::size_t needed = blocks - unused;
  std::size_t vacant = blocks_.size() - allocated_blocks();
  for (; vacant < needed && blocks_.size() < max_blocks_; ++vacant) create_block();
  return std::min(vacant, needed);
}

bool BufferPool::prepare_one() {
  preparing_.store(true, std::memory_order_relaxed);
  detail::BufferBlock* block = take_vacant();
  if (block && !memory_.reserve(place(block), stride_)) {
    const std::lock_guard lock(vacant_mutex_);
    block->next_free = std::exchange(vacant_, std::exchange(block, nullptr));
  }
  if (block) {
    memory_.populate(place(block), stride_);
    allocated_.fetch_add(1, std::memory_order_relaxed);
    recycle(block);
  }
  preparing_.store(false, std::memory_order_release);
  return block != nullptr;
}

void BufferPool::recycle(detail::BufferBlock* block) {
  detail::BufferBlock* head = recycled_.load(std::memory_order_relaxed);
  do {
    block->next_free = head;
  } while (!recycled_.compare_exchange_weak(head, block, std::memory_order_release, std::memory_order_relaxed));
}

void BufferPool::take_recycled() {
  detail::BufferBlock* list = recycled_.exchange(nullptr, std::memory_order_acquire);
  while (list) {
    detail::BufferBlock* next = list->next_free;
    list->next_free = free_;
    free_ = list;
    list = next;
  }
}

bool BufferPool::trim(std::size_t keep, std::size_t at_most) {
  take_recycled();
  if (shared_) return true;
  for (; free_ && allocated_blocks() > keep; --at_most) {
    if (at_most == 0) return false;
    detail::BufferBlock* block = free_;
    free_ = block->next_free;
    memory_.discard(place(block), stride_);
    allocated_.fetch_sub(1, std::memory_order_relaxed);
    const std::lock_guard lock(vacant_mutex_);
    block->next_free = std::exchange(vacant_, block);
  }
  return true;
}

std::size_t BufferPool::in_use() {
  take_recycled();
  std::size_t free_blocks = 0;
  for (const detail::BufferBlock* block = free_; block; block = block->next_free) ++free_blocks;
  return allocated_blocks() - free_blocks;
}

Result<FileDescriptor> BufferPool::share() {
  try {
    map();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit,
                "no shared memory for the buffers of parameters: memfd_create must be allowed, and "
                "the limits on open files and address space not reached");
  }
  shared_ = true;
  return memory_.read_only();
}

std::optional<std::uint64_t> BufferPool::offset(std::span<const std::byte> bytes) const {
  const std::less_equal<> before;  // a total order of pointers
  if (!memory_ || !before(memory_.data(), bytes.data()) ||
      !before(bytes.data() + bytes.size(), memory_.data() + memory_.size())) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes.data() - memory_.data());
}

std::size_t BufferPool::allocated_bytes() const {
  return allocated_blocks() * stride_;
}

}  // namespace tributary
