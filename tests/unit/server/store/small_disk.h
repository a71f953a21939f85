// A file system of a few megabytes, to be filled. Needs the right to mount one.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/temp_dir.h"

namespace tributary::testing {

class SmallDisk {
 public:
  // Mounts it at a folder of its own, or at `path`. Without the right returns null and prints that the test is skipped.
  static std::unique_ptr<SmallDisk> mount(std::uint64_t bytes, const std::string& path = {}) {
    std::unique_ptr<SmallDisk> disk(new SmallDisk(path));
    const std::string options = "size=" + std::to_string(bytes);
    if (::mount("tmpfs", disk->path().c_str(), "tmpfs", 0, options.c_str()) != 0) {
      std::printf("skipped: cannot mount a small file system: %s\n", std::strerror(errno));
      return nullptr;
    }
    disk->mounted_ = true;
    return disk;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  // Leaves no room for anything.
  void fill() {
    const int fd = ::open(filler().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(fd >= 0);
    // Again until nothing is got any more: others may hold some for a moment.
    for (std::uint64_t before = ~0ull; before != filled_; std::this_thread::sleep_for(std::chrono::milliseconds(200))) {
      before = filled_;
      for (std::uint64_t piece = 1u << 20; piece >= 4096; piece /= 2) {
        while (::fallocate(fd, 0, static_cast<off_t>(filled_), static_cast<off_t>(piece)) == 0) filled_ += piece;
      }
    }
    ::close(fd);
  }
  void make_room() {
    filled_ = 0;
    REQUIRE(std::filesystem::remove(filler()));
  }

 private:
  explicit SmallDisk(const std::string& path) : path_(path.empty() ? dir_.path() : path) {}
  std::string filler() const { return path_ + "/filler"; }

  const TempDir dir_;
  const std::string path_;
  bool mounted_ = false;
  std::uint64_t filled_ = 0;
};

}  // namespace tributary::testing
