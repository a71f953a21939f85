#include "session/shared/attach_region.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

namespace tributary {
namespace {

// The kernel takes the plain word; an always-lock-free atomic has the same representation. The non-private calls work
// across processes whatever address each has mapped the word at.
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace

// progress grows before waiters are looked at, and a sleeper raises waiters before the kernel compares progress: so no
// wake-up is lost.
void NodeHeader::announce() {
  progress.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) != 0) futex(progress, FUTEX_WAKE, INT_MAX, nullptr);
}

bool NodeHeader::sleep(std::uint32_t seen, std::chrono::nanoseconds timeout) {
  timespec limit{};
  limit.tv_sec = static_cast<std::time_t>(timeout.count() / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  waiters.fetch_add(1, std::memory_order_seq_cst);
  const bool woken = futex(progress, FUTEX_WAIT, seen, &limit) == 0 || errno != ETIMEDOUT;
  waiters.fetch_sub(1, std::memory_order_seq_cst);
  return woken;
}

std::vector<RegionPart> rank_region_parts(const Layout& layout, std::span<const std::size_t> held) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t gradients = rank_gradients_offset(layout.tensors().size());
  const std::size_t size = gradients + layout.flat_elements() * sizeof(float);
  const auto whole_pages = [page, size](std::size_t begin, std::size_t end) {
    return RegionPart{begin / page * page, std::min((end + page - 1) / page * page, size)};
  };
  std::vector<RegionPart> parts{whole_pages(0, gradients)};
  for (const std::size_t tensor : held) {
    const std::size_t begin = gradients + layout.tensor_offset(tensor) * sizeof(float);
    const RegionPart part = whole_pages(begin, begin + layout.tensors()[tensor].elements() * sizeof(float));
    if (part.begin <= parts.back().end) {
      parts.back().end = std::max(parts.back().end, part.end);
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

}  // namespace tributary
