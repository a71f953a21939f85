#include "tools/lab/network_namespace.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/daemon/daemon_thread.h"
#include "tools/cluster/command.h"
#include "tools/lab/lab_plan.h"

namespace tributary::lab {
namespace {

namespace fs = std::filesystem;

bool has_capability(int number) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("CapEff:"))
      return (std::strtoull(line.c_str() + 7, nullptr, 16) >> static_cast<unsigned>(number)) & 1u;
  }
  return false;
}

}  // namespace

Status in_network_namespace(const std::string& path, const std::function<Status()>& work) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(ErrorCode::kIo, "no network namespace " + path + ": " + std::strerror(errno));
  Status result;
  std::thread([&] {
    if (::setns(fd, CLONE_NEWNET) != 0) {
      result = fail(ErrorCode::kIo, "cannot enter the network namespace " + path + ": " + std::strerror(errno));
    } else {
      result = work();
    }
  }).join();
  ::close(fd);
  return result;
}

Status may_make_namespaces() {
  if (!has_capability(CAP_NET_ADMIN) || !has_capability(CAP_SYS_ADMIN)) {
    return fail(ErrorCode::kUnavailable,
                "the lab makes network namespaces and limits their links, which needs root, or CAP_NET_ADMIN and "
                "CAP_SYS_ADMIN; run it with sudo");
  }
  for (const char* program : {"ip", "tc"}) {
    if (find_program(program).empty()) {
      return fail(ErrorCode::kUnavailable, std::string("the lab needs the program ") + program +
                                               ", which is not installed; on Debian it is in the package iproute2");
    }
  }
  // A trial, on a thread that takes the namespace with it: a container may forbid what the capabilities allow.
  int error = 0;
  std::thread([&] { error = ::unshare(CLONE_NEWNET) == 0 ? 0 : errno; }).join();
  if (error != 0) {
    return fail(ErrorCode::kUnavailable, std::string("this system allows no new network namespace (") +
                                             std::strerror(error) + "); in a container, it must be a privileged one");
  }
  return {};
}

std::vector<std::string> namespaces_named(const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kNamespaceFolder, error)) {
    std::string name = entry.path().filename();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

std::vector<pid_t> processes_in(const std::string& path) {
  std::vector<pid_t> found;
  struct stat wanted {};
  if (::stat(path.c_str(), &wanted) != 0) return found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    struct stat one {};
    if (::stat((entry.path() / "ns/net").c_str(), &one) != 0) continue;
    if (one.st_ino != wanted.st_ino || one.st_dev != wanted.st_dev) continue;
    const auto pid = static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10));
    if (pid != ::getpid()) found.push_back(pid);
  }
  return found;
}

}  // namespace tributary::lab
