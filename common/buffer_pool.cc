#include "common/buffer_pool.h"

#include <sys/mman.h>

#include <new>

#include "common/assert.h"

namespace tributary {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2u << 20;
// Consecutive blocks start this many cache lines apart modulo a page. 5 is coprime to 64: all 64 colours are used.
constexpr std::size_t kStaggerLines = 5;

std::size_t round_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

// One anonymous mapping per block: trim() can give it back whatever its neighbours do.
struct BufferPool::Slab {
  detail::BufferBlock block;
  void* mapping = nullptr;
  std::size_t mapped = 0;

  Slab(std::size_t bytes, std::size_t colour) {
    const std::size_t stagger = colour % (kPage / kCacheLine) * kCacheLine;
    mapped = round_up(bytes + stagger, kPage);
    mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    if (mapped >= kHugePage) ::madvise(mapping, mapped, MADV_HUGEPAGE);
    block.data = static_cast<std::byte*>(mapping) + stagger;
  }
  ~Slab() { ::munmap(mapping, mapped); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
};

void BufferRef::reset() {
  if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) block_->pool->recycle(block_);
  block_ = nullptr;
  size_ = 0;
}

BufferPool::BufferPool(std::size_t block_bytes, std::size_t max_blocks)
    : block_bytes_(block_bytes), max_blocks_(max_blocks) {}

// Counting free blocks, not references: the last drop touches the pool after the count has reached 0.
BufferPool::~BufferPool() {
  TRIB_ASSERT(in_use() == 0);
}

BufferRef BufferPool::acquire(std::size_t size) {
  TRIB_ASSERT(size <= block_bytes_);
  if (!free_) take_recycled();
  if (!free_) {
    if (slabs_.size() >= max_blocks_) return {};
    slabs_.push_back(std::make_unique<Slab>(block_bytes_, slabs_.size() * kStaggerLines));
    slabs_.back()->block.pool = this;
    slabs_.back()->block.slab = slabs_.size() - 1;
    free_ = &slabs_.back()->block;
    allocated_.store(slabs_.size(), std::memory_order_relaxed);
  }
  detail::BufferBlock* block = free_;
  free_ = block->next_free;
  block->next_free = nullptr;
  block->refs.store(1, std::memory_order_relaxed);
  return BufferRef::adopt(block, size);
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

void BufferPool::trim(std::size_t keep) {
  take_recycled();
  while (free_ && slabs_.size() > keep) {
    const std::size_t slab = free_->slab;
    free_ = free_->next_free;
    std::swap(slabs_[slab], slabs_.back());
    slabs_[slab]->block.slab = slab;
    slabs_.pop_back();
  }
  allocated_.store(slabs_.size(), std::memory_order_relaxed);
}

std::size_t BufferPool::in_use() {
  take_recycled();
  std::size_t free_blocks = 0;
  for (const detail::BufferBlock* block = free_; block; block = block->next_free) ++free_blocks;
  return slabs_.size() - free_blocks;
}

std::size_t BufferPool::allocated_bytes() const {
  return allocated_blocks() * round_up(block_bytes_ + kPage, kPage);
}

}  // namespace tributary
