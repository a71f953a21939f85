#include "worker/node/memory_budget.h"

namespace tributary {

bool MemoryBudget::take(std::uint64_t bytes) {
  std::uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

std::shared_ptr<const BudgetShare> BudgetShare::take(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes) {
  if (!budget->take(bytes)) return nullptr;
  return taken(std::move(budget), bytes);
}

std::shared_ptr<const BudgetShare> BudgetShare::taken(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes) {
  return std::shared_ptr<const BudgetShare>(new BudgetShare(std::move(budget), bytes));
}

}  // namespace tributary
