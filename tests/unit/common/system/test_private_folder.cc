// Folders that are one user's alone, and where daemons and trainers of one user meet.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "common/system/private_folder.h"
#include "common/system/socket_peer.h"
#include "tests/unit/expect.h"
#include "tests/unit/other_user.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing::private_folder_test {
namespace {

namespace fs = std::filesystem;

unsigned mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::lstat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

struct Umask {
  explicit Umask(mode_t mask) : before(::umask(mask)) {}
  ~Umask() { ::umask(before); }
  mode_t before;
};

// XDG_RUNTIME_DIR, for a while.
struct Runtime {
  explicit Runtime(const std::string& path) {
    if (const char* had = ::getenv("XDG_RUNTIME_DIR")) before = had;
    ::setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
  }
  ~Runtime() { before ? ::setenv("XDG_RUNTIME_DIR", before->c_str(), 1) : ::unsetenv("XDG_RUNTIME_DIR"); }
  std::optional<std::string> before;
};

TEST_CASE("a folder is made this user's alone, whatever the umask and whatever it was") {
  const TempDir dir;
  const Umask open(0);
  REQUIRE(make_private_folder(dir / "above/new"));
  CHECK(mode_of(dir / "above/new") == 0700);
  fs::create_directory(dir / "old");
  REQUIRE(mode_of(dir / "old") == 0777);
  REQUIRE(make_private_folder(dir / "old"));
  CHECK(mode_of(dir / "old") == 0700);
}

TEST_CASE("a link, a file and another user's folder are refused") {
  const TempDir dir;
  fs::create_directory(dir / "folder");
  fs::create_directory_symlink(dir / "folder", dir / "link");
  std::ofstream(dir / "file") << "x";
  for (const char* name : {"link", "file"}) {
    const auto made = failure_of(make_private_folder(dir / name));
    CHECK(contains(made.message, dir / name + " is a link or no folder"));
  }
  CHECK(check_own_folder(dir / "folder"));
  if (!can_be_another_user()) return;
  fs::create_directory(dir / "theirs");
  REQUIRE(::chown((dir / "theirs").c_str(), kOtherUser, kOtherUser) == 0);
  for (const Status& checked : {make_private_folder(dir / "theirs"), check_own_folder(dir / "theirs")}) {
    REQUIRE_FALSE(checked);
    CHECK(contains(checked.error().message, dir / "theirs belongs to user 65534"));
    CHECK(contains(checked.error().message, "name another folder"));
  }
}

TEST_CASE("the run folder is in a folder of this user alone") {
  const TempDir dir;
  const std::string fallback = "/tmp/tributary-" + std::to_string(::geteuid());
  const std::string without = [] {
    const Runtime none("");
    return run_folder();
  }();
  CHECK((without == fallback || without == "/run/user/" + std::to_string(::geteuid()) + "/tributary"));
  {
    const Runtime own(dir.path());
    CHECK(run_folder() == dir / "tributary");
    CHECK(default_worker_socket() == dir / "tributary/worker.sock");
    REQUIRE(prepare_socket_folder(dir / "elsewhere/worker.sock"));
    CHECK_FALSE(fs::exists(dir / "elsewhere"));
    const Umask open(0);
    REQUIRE(prepare_socket_folder(default_worker_socket()));
    CHECK(mode_of(dir / "tributary") == 0700);
  }
  fs::create_directory(dir / "shared");
  ::chmod((dir / "shared").c_str(), 0770);
  for (const std::string& unfit : {dir / "shared", dir / "none", std::string("relative")}) {
    const Runtime runtime(unfit);
    CHECK_MESSAGE(run_folder() == without, unfit);
  }
  if (!can_be_another_user()) return;
  ::chmod((dir / "shared").c_str(), 0700);
  REQUIRE(::chown((dir / "shared").c_str(), kOtherUser, kOtherUser) == 0);
  const Runtime theirs(dir / "shared");
  CHECK(run_folder() == without);
}

TEST_CASE("a process is trusted that is this user's or root's") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
  const auto self = required(peer_at(ends[0]));
  CHECK(self.pid == ::getpid());
  CHECK(is_trusted(self));
  CHECK(is_trusted({.pid = 1, .uid = 0}));
  CHECK_FALSE(is_trusted({.pid = 1, .uid = ::geteuid() + 1}));
  CHECK(in_words({.pid = 17, .uid = 1000}) == "process 17 of user 1000");
  ::close(ends[0]);
  ::close(ends[1]);
  CHECK_FALSE(peer_at(-1));
}

}  // namespace
}  // namespace tributary::testing::private_folder_test
