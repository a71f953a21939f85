#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/system/buffer_pool.h"
#include "tests/unit/required.h"

namespace tributary::buffer_pool_test {

TEST_CASE("a buffer has the size asked for and is aligned to a cache line") {
  BufferPool pool(5000, 4);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5000}}) {
    const BufferRef buffer = pool.acquire(size);
    REQUIRE(buffer);
    CHECK(buffer.size() == size);
    CHECK(buffer.bytes().size() == size);
    CHECK(buffer.floats().size() == size / sizeof(float));
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    if (size != 0) std::memset(buffer.data(), 1, size);
  }
}

TEST_CASE("blocks start at different cache lines of a page, so that arrays do not alias") {
  BufferPool pool(4096, 64);
  std::vector<BufferRef> buffers;
  std::set<std::uintptr_t> colours;
  for (int i = 0; i < 64; ++i) {
    buffers.push_back(pool.acquire(4096));
    colours.insert(reinterpret_cast<std::uintptr_t>(buffers.back().data()) % 4096);
  }
  CHECK(colours.size() == 64);
}

TEST_CASE("beyond the bound acquire gives an empty reference, and a buffer again when one came back") {
  BufferPool pool(64, 2);
  BufferRef a = pool.acquire(64), b = pool.acquire(64);
  CHECK(pool.available() == 0);
  CHECK_FALSE(pool.acquire(64));
  b.reset();
  CHECK_FALSE(b);
  CHECK(pool.available() == 1);
  CHECK(pool.acquire(64));
  CHECK(pool.allocated_blocks() == 2);
}

TEST_CASE("a buffer is unique until it is copied and again when the copy is gone") {
  BufferPool pool(64, 1);
  BufferRef a = pool.acquire(64);
  CHECK(a.unique());
  {
    const BufferRef copy = a;
    CHECK_FALSE(a.unique());
    CHECK(copy.data() == a.data());
    CHECK(copy.size() == 64);
  }
  CHECK(a.unique());
  BufferRef moved = std::move(a);
  CHECK(moved.unique());
  CHECK_FALSE(a);  // NOLINT(bugprone-use-after-move): what a moved-from reference is, is the point
  BufferRef& self = moved;
  moved = self;
  CHECK(moved.unique());
  CHECK(pool.in_use() == 1);
}

TEST_CASE("a released handle keeps the buffer until it is adopted and dropped") {
  BufferPool pool(64, 1);
  BufferRef a = pool.acquire(64);
  void* handle = BufferRef(a).release();
  CHECK_FALSE(a.unique());
  a.reset();
  CHECK(pool.in_use() == 1);
  BufferRef::adopt(handle).reset();
  CHECK(pool.in_use() == 0);
}

TEST_CASE("blocks that were prepared need no more memory, and are acquired like others") {
  BufferPool pool(100'000, 8);
  const BufferRef one = pool.acquire(100'000);
  CHECK(pool.expect(3) == 3);
  CHECK(pool.allocated_blocks() == 1);
  std::thread([&] {
    while (pool.prepare_one()) {
    }
  }).join();
  CHECK(pool.allocated_blocks() == 4);
  CHECK(pool.in_use() == 1);
  CHECK(pool.expect(3) == 0);
  CHECK(pool.expect(100) == 4);  // all that the bound leaves
  std::vector<BufferRef> all;
  for (int i = 0; i < 7; ++i) {
    all.push_back(pool.acquire(100'000));
    REQUIRE(all.back());
    all.back().floats()[24'999] = 1.0f;
  }
  CHECK_FALSE(pool.acquire(1));
  CHECK_FALSE(pool.prepare_one());
}

TEST_CASE("acquiring while another thread prepares gives every block once, up to the bound") {
  BufferPool pool(4096, 64);
  for (int round = 0; round < 50; ++round) {
    pool.expect(64);
    std::thread other([&] {
      while (pool.prepare_one()) {
      }
    });
    std::vector<BufferRef> all;
    for (int i = 0; i < 64; ++i) {
      all.push_back(pool.acquire(4096));
      REQUIRE(all.back());
    }
    CHECK_FALSE(pool.acquire(4096));
    other.join();
    std::set<const std::byte*> places;
    for (const BufferRef& ref : all) places.insert(ref.data());
    CHECK(places.size() == 64);
    all.clear();
    CHECK(pool.trim(0));
    CHECK(pool.allocated_blocks() == 0);
  }
}

TEST_CASE("trim can be done a part at a time") {
  BufferPool pool(4096, 8);
  {
    std::vector<BufferRef> all;
    for (int i = 0; i < 8; ++i) all.push_back(pool.acquire(4096));
  }
  CHECK_FALSE(pool.trim(2, 4));
  CHECK(pool.allocated_blocks() == 4);
  CHECK(pool.trim(2, 4));
  CHECK(pool.allocated_blocks() == 2);
}

TEST_CASE("trim gives free blocks back, keeps those in use, and the pool grows again") {
  BufferPool pool(4096, 8);
  std::vector<BufferRef> buffers;
  for (int i = 0; i < 8; ++i) {
    buffers.push_back(pool.acquire(4096));
    std::memset(buffers.back().data(), i, 4096);
  }
  for (const int dropped : {0, 2, 3, 7}) buffers[static_cast<std::size_t>(dropped)].reset();
  pool.trim(6);
  CHECK(pool.allocated_blocks() == 6);
  CHECK(pool.in_use() == 4);
  pool.trim(0);  // what is in use stays
  CHECK(pool.allocated_blocks() == 4);
  CHECK(pool.available() == 4);
  for (const int kept : {1, 4, 5, 6}) {
    CHECK(buffers[static_cast<std::size_t>(kept)].data()[4095] == static_cast<std::byte>(kept));
  }
  buffers.clear();
  CHECK(pool.in_use() == 0);
  pool.trim(1);
  CHECK(pool.allocated_blocks() == 1);
  for (int i = 0; i < 8; ++i) buffers.push_back(pool.acquire(4096));
  CHECK(buffers.back());
  CHECK_FALSE(pool.acquire(1));
}

TEST_CASE("a pool that others read is theirs to read alone, grows as before, and keeps its memory") {
  BufferPool pool(4096, 8);
  std::vector<BufferRef> all;
  for (int i = 0; i < 4; ++i) all.push_back(pool.acquire(4096));
  const auto readable = required(pool.share());
  const FileDescriptor anew(::open(("/proc/self/fd/" + std::to_string(readable.get())).c_str(), O_RDWR));
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, anew.get(), 0) == MAP_FAILED);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, readable.get(), 0) == MAP_FAILED);
  const auto mapped = required(SharedMemory::map_sealed(FileDescriptor(::dup(readable.get())), "a test"));
  while (all.size() < 8) all.push_back(pool.acquire(4096));
  for (int i = 0; i < 8; ++i) {
    const auto at = static_cast<std::size_t>(i);
    std::memset(all[at].data(), i, 4096);
    CHECK(mapped.data()[*pool.offset(all[at].bytes()) + 4095] == static_cast<std::byte>(i));
  }
  all.clear();
  CHECK(pool.trim(0));
  CHECK(pool.allocated_blocks() == 8);  // as the kernel's own count says: there are no holes
  struct stat info {};
  REQUIRE(::fstat(readable.get(), &info) == 0);
  CHECK(static_cast<std::size_t>(info.st_blocks) * 512 >= 8 * 4096);
}

TEST_CASE("the memory gauge covers every allocated block") {
  BufferPool pool(1 << 20, 3);
  CHECK(pool.allocated_bytes() == 0);
  const BufferRef a = pool.acquire(1), b = pool.acquire(1);
  CHECK(pool.allocated_bytes() >= 2u << 20);
  CHECK(pool.allocated_bytes() <= 2 * ((1u << 20) + 2 * 4096));
}

TEST_CASE("buffers dropped on other threads come back to the owner") {
  constexpr int kThreads = 3, kRounds = 2000, kBlocks = 16;
  BufferPool pool(256, kBlocks);
  std::uint64_t wrong = 0;
  for (int round = 0; round < kRounds / kBlocks; ++round) {
    std::vector<std::vector<BufferRef>> given(kThreads);
    for (int i = 0; i < kBlocks; ++i) {
      const BufferRef buffer = pool.acquire(256);
      REQUIRE(buffer);
      std::memset(buffer.data(), i, 256);
      for (auto& part : given) part.push_back(buffer);
    }
    std::vector<std::thread> threads;
    std::vector<std::uint64_t> bad(kThreads, 0);
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&part = given[t], &count = bad[t]] {
        for (std::size_t i = 0; i < part.size(); ++i) {
          if (part[i].data()[255] != static_cast<std::byte>(i)) ++count;
          part[i].reset();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::uint64_t count : bad) wrong += count;
    REQUIRE(pool.in_use() == 0);
  }
  CHECK(wrong == 0);
  CHECK(pool.allocated_blocks() == kBlocks);
}

}  // namespace tributary::buffer_pool_test
