// MemoryBudget: how much memory a worker may use for its jobs. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace tributary {

// Bytes of shared memory, reduction frames and what ranks keep that all jobs of a worker hold, against its limit.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t limit) : limit_(limit) {}
  bool take(std::uint64_t bytes);
  void give_back(std::uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t limit() const { return limit_; }

 private:
  const std::uint64_t limit_;
  std::atomic<std::uint64_t> used_{0};
};

// Bytes of a budget, until it goes.
class BudgetShare {
 public:
  // Null: there is no room.
  static std::shared_ptr<const BudgetShare> take(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes);
  // Makes a share of bytes that are taken already.
  static std::shared_ptr<const BudgetShare> taken(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes);
  ~BudgetShare() { budget_->give_back(bytes_); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  BudgetShare(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes) : budget_(std::move(budget)), bytes_(bytes) {}

  const std::shared_ptr<MemoryBudget> budget_;
  const std::uint64_t bytes_;
};

}  // namespace tributary
