// Fenced: an array between two inaccessible pages, so that a read or write outside it ends the test in every build. It
// begins or ends at a page's border: one array cannot do both.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <span>

namespace tributary::testing {

enum class Fence { kBefore, kBehind };

template <class T>
class Fenced {
 public:
  Fenced(std::size_t count, Fence fence) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t bytes = count * sizeof(T), room = (bytes + page - 1) / page * page;
    size_ = room + 2 * page;
    memory_ = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* const first = static_cast<std::byte*>(memory_) + page;
    if (memory_ == MAP_FAILED || (room != 0 && ::mprotect(first, room, PROT_READ | PROT_WRITE) != 0)) {
      throw std::bad_alloc();
    }
    values_ = {reinterpret_cast<T*>(fence == Fence::kBefore ? first : first + room - bytes), count};
  }
  ~Fenced() { ::munmap(memory_, size_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  T* data() const { return values_.data(); }
  std::span<T> all() const { return values_; }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(values_.data()); }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
  std::span<T> values_;
};

}  // namespace tributary::testing
