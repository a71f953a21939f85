#include "tools/lab/lab.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "common/config/json_text.h"
#include "tools/cluster/command.h"
#include "tools/lab/network_namespace.h"

namespace tributary::lab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kEndGrace{5'000};   // between SIGTERM and SIGKILL
constexpr milliseconds kKillGrace{5'000};  // for the kernel to end what was killed
constexpr milliseconds kEndPoll{20};

std::string folder_of(const std::string& name) {
  return kLabFolder + name;
}

std::string state_file(const std::string& name) {
  return folder_of(name) + "/state.json";
}

Status apply(const PlannedSetting& setting) {
  return in_network_namespace(namespace_path(setting.network_namespace), [&]() -> Status {
    const std::string path = "/proc/sys/" + setting.path;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    // A kernel without IPv6 has nothing to turn off.
    if (fd < 0 && errno == ENOENT && setting.path.starts_with("net/ipv6/")) return {};
    const bool written = fd >= 0 && ::write(fd, setting.value.data(), setting.value.size()) ==
                                        static_cast<ssize_t>(setting.value.size());
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (written) return {};
    return fail(
        ErrorCode::kIo,
        "cannot set " + path + " to " + setting.value + ": " + std::strerror(error) +
            (setting.path.ends_with("congestion_control") ? "; name another one with congestion in [lab]" : ""));
  });
}

void signal_all(const std::set<pid_t>& processes, int signal) {
  for (const pid_t pid : processes) ::kill(pid, signal);
}

std::set<pid_t> processes_of(const std::vector<std::string>& namespaces) {
  std::set<pid_t> found;
  for (const std::string& name : namespaces) {
    for (const pid_t pid : processes_in(namespace_path(name))) found.insert(pid);
  }
  return found;
}

// False if some are still there.
bool wait_gone(const std::vector<std::string>& namespaces, milliseconds patience) {
  const auto until = Clock::now() + patience;
  while (!processes_of(namespaces).empty()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(kEndPoll);
  }
  return true;
}

// All but the folder with the lock in it. REQUIRES: the lock is held.
Result<Removed> clear(const std::string& lab) {
  std::vector<std::string> namespaces = namespaces_named(namespace_prefix(lab));
  Removed removed;
  const std::set<pid_t> processes = processes_of(namespaces);
  removed.processes = processes.size();
  signal_all(processes, SIGTERM);
  if (!wait_gone(namespaces, kEndGrace)) {
    signal_all(processes_of(namespaces), SIGKILL);
    if (!wait_gone(namespaces, kKillGrace)) {
      std::string pids;
      for (const pid_t pid : processes_of(namespaces)) pids += (pids.empty() ? "" : ", ") + std::to_string(pid);
      return fail(ErrorCode::kTimeout, "processes in the lab " + lab + " cannot be killed: " + pids);
    }
  }
  // The hosts first: with one end of a pair goes the other, so that the switch is left with nothing.
  std::ranges::stable_partition(namespaces, [](const std::string& name) { return !name.ends_with(".switch"); });
  for (const std::string& name : namespaces) {
    if (auto done = run_command({.argv = {"ip", "netns", "delete", name}}); !done) return tl::unexpected(done.error());
    ++removed.namespaces;
  }
  std::error_code ignored;
  fs::remove(state_file(lab), ignored);
  return removed;
}

}  // namespace

Result<LabLock> LabLock::take(const std::string& name) {
  const std::string path = folder_of(name) + "/lock";
  // Tries again if the file was removed between open and lock: then the lock is on a file that no other process finds.
  constexpr int kAttempts = 10;
  for (int i = 0; i < kAttempts; ++i) {
    std::error_code error;
    fs::create_directories(folder_of(name), error);
    if (error) return fail(ErrorCode::kIo, "cannot create the folder " + folder_of(name) + ": " + error.message());
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
      if (errno == ENOENT) continue;
      return fail(ErrorCode::kIo, "cannot open " + path + ": " + std::strerror(errno));
    }
    LabLock lock(name, fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      char holder[32] = {};
      [[maybe_unused]] const auto got = ::pread(fd, holder, sizeof holder - 1, 0);
      return fail(ErrorCode::kUnavailable, "the lab " + name + " is in use by process " +
                                               std::to_string(std::atol(holder)) + "; end that first");
    }
    struct stat ours {
    }, there{};
    if (::fstat(fd, &ours) != 0 || ::stat(path.c_str(), &there) != 0 || ours.st_ino != there.st_ino) continue;
    const std::string pid = std::to_string(::getpid()) + "\n";
    if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0)
      return fail(ErrorCode::kIo, "cannot write " + path + ": " + std::strerror(errno));
    return lock;
  }
  return fail(ErrorCode::kUnavailable, "the lab " + name + " is being taken down; try again");
}

LabLock::LabLock(LabLock&& other) noexcept : name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)) {}

LabLock::~LabLock() {
  if (fd_ >= 0) ::close(fd_);
}

void LabLock::remove_folder() {
  std::error_code ignored;
  fs::remove_all(folder_of(name_), ignored);
  fs::remove(kLabFolder, ignored);  // if it was the last
}

Lab::Lab(LabConfig config, LabLock lock)
    : config_(std::move(config)), plan_(plan_lab(config_)), lock_(std::move(lock)) {}

Result<std::unique_ptr<Lab>> Lab::up(const LabConfig& config, bool transient, const Interrupted& interrupted) {
  auto lock = LabLock::take(config.name);
  if (!lock) return tl::unexpected(lock.error());
  std::unique_ptr<Lab> lab(new Lab(config, std::move(*lock)));
  std::ifstream in(state_file(config.name));
  const auto state = json_in(std::string(std::istreambuf_iterator<char>(in), {}));
  if (state.is_object() && state.value("complete", false) && !state.value("transient", true)) {
    if (state.value("fingerprint", "") != lab->plan_.fingerprint) {
      return fail(ErrorCode::kUnavailable, "the lab " + config.name +
                                               " is up with other hosts or links than this file says; `tributary lab "
                                               "down " +
                                               config.name + "` takes it down");
    }
    // After a reboot the state may have outlived the namespaces.
    if (namespaces_named(namespace_prefix(config.name)).size() == lab->plan_.namespaces.size()) {
      for (const auto& link : state.value("links", nlohmann::json::array())) {
        if (auto check = link_check_from(link)) lab->links_.push_back(std::move(*check));
      }
      lab->was_up_ = lab->exists_ = true;
      return lab;
    }
  }
  // Removes the rest of an earlier run.
  if (auto removed = clear(config.name); !removed) return tl::unexpected(removed.error());
  lab->transient_ = transient;
  if (auto ok = lab->make(interrupted); !ok) {
    if (auto undone = lab->down(); !undone) return tl::unexpected(undone.error());
    return tl::unexpected(ok.error());
  }
  return lab;
}

Status Lab::make(const Interrupted& interrupted) {
  exists_ = true;
  for (const auto& command : plan_.commands) {
    if (interrupted()) return fail(ErrorCode::kStopped, "interrupted while the lab was coming up; it is down again");
    if (auto done = run_command({.argv = command}); !done) {
      Error error = done.error();
      if (command.at(0) == "tc") error.message += "; the lab needs a kernel with the queueing discipline tbf (sch_tbf)";
      return tl::unexpected(std::move(error));
    }
  }
  for (const PlannedSetting& setting : plan_.settings) {
    if (auto ok = apply(setting); !ok) return ok;
  }
  return write_state();
}

Status Lab::write_state() const {
  auto links = nlohmann::json::array();
  for (const LinkCheck& check : links_) links.push_back(nlohmann::json::parse(to_json(check).dump()));
  const nlohmann::json state = {
      {"complete", true}, {"transient", transient_}, {"fingerprint", plan_.fingerprint}, {"links", links}};
  const std::string path = state_file(config_.name), temporary = path + ".new";
  std::error_code error;
  fs::create_directories(folder_of(config_.name), error);
  std::ofstream out(temporary, std::ios::trunc);
  out << state.dump(2) << "\n";
  out.close();
  if (!out || ::rename(temporary.c_str(), path.c_str()) != 0)
    return fail(ErrorCode::kIo, "cannot write " + path + ": " + std::strerror(errno));
  return {};
}

Status Lab::verify(double seconds, const Interrupted& interrupted) {
  auto checks = check_links(config_, plan_, seconds, interrupted);
  if (!checks) return tl::unexpected(checks.error());
  links_ = std::move(*checks);
  return write_state();
}

Status Lab::down() {
  exists_ = false;
  if (auto removed = clear(config_.name); !removed) return tl::unexpected(removed.error());
  lock_.remove_folder();
  return {};
}

Lab::~Lab() {
  if (exists_ && transient_) [[maybe_unused]]
    const auto undone = down();
}

std::vector<std::string> labs_found() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kLabFolder, error)) names.insert(entry.path().filename());
  const std::string prefix = kNamespacePrefix;
  for (const std::string& name : namespaces_named(prefix)) {
    names.insert(name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size()));
  }
  return {names.begin(), names.end()};
}

Result<Removed> take_down(LabLock lock) {
  auto removed = clear(lock.name());
  if (removed) lock.remove_folder();
  return removed;
}

}  // namespace tributary::lab
