// Code that runs once per chunk and round must not allocate. This program counts every allocation through malloc (which
// operator new uses); under sanitizers, which own malloc, it only checks that the code runs.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>

#include "common/wire/codec.h"

#ifndef TRIBUTARY_SANITIZED
namespace {
thread_local long allocations = 0;
}

extern "C" {
// glibc's own entry points, for programs that replace malloc.
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) {
  ++allocations;
  return __libc_realloc(block, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  ++allocations;
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t size) {
  ++allocations;
  *out = __libc_memalign(alignment, size);
  return *out ? 0 : 12;
}
}
#endif

namespace tributary {
namespace {

template <class Function>
long allocations_of(Function&& function) {
#ifndef TRIBUTARY_SANITIZED
  const long before = allocations;
  function();
  return allocations - before;
#else
  function();
  return 0;
#endif
}

}  // namespace

TEST_CASE("the allocation counter counts") {
#ifndef TRIBUTARY_SANITIZED
  volatile std::size_t size = 100;
  CHECK(allocations_of([&] { std::free(std::malloc(size)); }) == 1);
  CHECK(allocations_of([&] { ::operator delete(::operator new(size)); }) == 1);  // a call that is not elided
#endif
}

TEST_CASE("encoding and decoding the messages of a round allocates nothing") {
  const ChunkKey key{JobId(7), ViewId(3), NodeRank(1), ChunkIndex(42)};
  Push with_settings{key, Round(9), 64, EncodingId::kBf16};
  with_settings.settings = {{.lr = 0.5}, {.lr = 0.25, .weight_decay = 0.125}};
  const DataMessage messages[] = {Push{key, Round(9), 64, EncodingId::kBf16},
                                  with_settings,
                                  Init{key},
                                  Pull{key},
                                  Query{key, Round(9)},
                                  Ack{key, Round(9)},
                                  Answer{key, Version(9), EncodingId::kFp16},
                                  Resend{key, Round(9)}};
  alignas(8) std::byte buffer[kMaxErrorHeader];
  for (const DataMessage& message : messages) {
    bool ok = false;
    const long count = allocations_of([&] {
      for (int i = 0; i < 100; ++i) {
        const auto decoded = decode_data(encode_data(message, buffer));
        ok = decoded.has_value() && decoded->index() == message.index();
      }
    });
    CHECK(ok);
    CHECK(count == 0);
  }
}

}  // namespace tributary
