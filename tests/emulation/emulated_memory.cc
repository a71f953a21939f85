// The shared cases (tests/gpu/kernel_twins.h) on the emulation: device memory is the heap's, and every case runs under
// several orders of threads and sizes of grids.
#include <cstdlib>
#include <iterator>
#include <new>

#include "tests/emulation/cuda_emulation.h"
#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

using emulation::Turns;

// Grids that stride over everything, over some, and over nothing.
constexpr emulation::Schedule kWays[] = {{.seed = 0, .turns = Turns::kThreads, .max_blocks = 1},
                                         {.seed = 1, .turns = Turns::kWarps, .max_blocks = 3},
                                         {.seed = 2, .turns = Turns::kThreads, .max_blocks = 1u << 31},
                                         {.seed = 3, .turns = Turns::kWarps, .max_blocks = 2}};

}  // namespace

void* device_allocate(std::size_t bytes) {
  void* at = nullptr;
  // 16 bytes and no more, so that a kernel that relies on more is found.
  if (::posix_memalign(&at, 32, bytes + 16) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(at) + 16;
}

void device_free(void* at) noexcept {
  if (at != nullptr) std::free(static_cast<std::byte*>(at) - 16);
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void copy_from_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

kernels::cuda::Stream stream() {
  return nullptr;
}

int ways() {
  return static_cast<int>(std::size(kWays));
}

void use_way(int way) {
  emulation::use(kWays[way]);
}

bool fast() {
  return false;
}

}  // namespace tributary::twins
