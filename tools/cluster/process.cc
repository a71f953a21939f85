#include "tools/cluster/process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace tributary {
namespace {

constexpr std::chrono::milliseconds kPollInterval{2};

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
}

std::vector<std::string> merged_environment(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::none_of(added.begin(), added.end(), [&](const auto& a) { return a.first == name; }))
      result.emplace_back(text);
  }
  for (const auto& [name, value] : added) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& s : strings) result.push_back(s.data());
  result.push_back(nullptr);
  return result;
}

// The child between fork and exec. Only async-signal-safe calls: the caller may have threads that held locks.
struct ChildFds {
  int log = -1, output = -1, inherit = -1, network_namespace = -1;
  int report = -1;  // where an errno goes if there is no exec
};

[[noreturn]] void become(char** argv, char** environment, const ChildFds& fds, pid_t parent) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(fds.report, &error, sizeof error);
    ::_exit(127);
  };
  // Signals sent to the parent's group before this child left it are for the parent, and dropped here: a signal that is
  // ignored does not stay pending. Only then may the signal for the parent's end arrive.
  ::setpgid(0, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    ::signal(signal, SIG_IGN);
    ::signal(signal, SIG_DFL);
  }
  ::signal(SIGHUP, ::signal(SIGHUP, SIG_IGN));  // as it was: nohup has it ignored
  ::signal(SIGPIPE, SIG_DFL);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // the parent ended before the line above took effect
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, STDIN_FILENO) < 0) give_up();
  const int output = fds.output >= 0 ? fds.output : fds.log;
  if (output >= 0 && ::dup2(output, STDOUT_FILENO) < 0) give_up();
  if (fds.log >= 0 && ::dup2(fds.log, STDERR_FILENO) < 0) give_up();
  if (fds.network_namespace >= 0 && ::setns(fds.network_namespace, CLONE_NEWNET) != 0) give_up();
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  if (fds.inherit >= 0) ::fcntl(fds.inherit, F_SETFD, 0);
  ::execve(argv[0], argv, environment);
  give_up();
  ::_exit(127);
}

}  // namespace

std::string ExitStatus::describe() const {
  if (signal != 0) {
    return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  }
  return "exited with status " + std::to_string(code);
}

ProcessUsage usage_of(pid_t pid) {
  ProcessUsage usage;
  const std::string folder = "/proc/" + std::to_string(pid);
  std::ifstream stat(folder + "/stat");
  std::string text;
  if (std::getline(stat, text)) {
    // Fields after "pid (name)": the name may hold spaces and parentheses, hence from the last one. utime and stime are
    // the 12th and 13th after it.
    std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
    std::string field;
    std::uint64_t ticks = 0;
    for (int i = 0; i < 13 && fields >> field; ++i) {
      if (i >= 11) ticks += std::strtoull(field.c_str(), nullptr, 10);
    }
    usage.cpu_seconds = static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  std::ifstream status(folder + "/status");
  while (std::getline(status, text)) {
    if (text.starts_with("VmHWM:")) usage.resident_peak_bytes = std::strtoull(text.c_str() + 6, nullptr, 10) * 1024;
  }
  return usage;
}

Result<Process> Process::spawn(const ProcessOptions& options) {
  const std::string& program = options.argv.at(0);
  ChildFds fds;
  fds.inherit = options.inherit_fd;
  int report[2] = {-1, -1};
  const auto close_all = [&] {
    for (const int fd : {fds.log, fds.output, fds.network_namespace, report[0], report[1]}) {
      if (fd >= 0) ::close(fd);
    }
  };
  const auto give_up = [&](const std::string& message) {
    close_all();
    return fail(ErrorCode::kIo, message);
  };
  for (const auto& [file, fd] : {std::pair{&options.log_file, &fds.log}, {&options.output_file, &fds.output}}) {
    if (file->empty()) continue;
    *fd = ::open(file->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (*fd < 0) {
      return give_up("cannot open the log file " + *file + " of " + program + ": " + std::strerror(errno) +
                     "; check that its folder exists and may be written");
    }
  }
  if (!options.network_namespace.empty()) {
    fds.network_namespace = ::open(options.network_namespace.c_str(), O_RDONLY | O_CLOEXEC);
    if (fds.network_namespace < 0) {
      return give_up("cannot start " + program + ": no network namespace " + options.network_namespace + ": " +
                     std::strerror(errno));
    }
  }
  if (::pipe2(report, O_CLOEXEC) != 0) {
    return give_up("cannot start " + program + ": no pipe: " + std::strerror(errno));
  }
  fds.report = report[1];
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> environment = merged_environment(options.environment);
  std::vector<char*> argv = pointers(arguments);
  std::vector<char*> envp = pointers(environment);

  Process process;
  const pid_t self = ::getpid();
  process.pid_ = ::fork();
  if (process.pid_ == 0) become(argv.data(), envp.data(), fds, self);
  int error = process.pid_ < 0 ? errno : 0;
  ::close(std::exchange(report[1], -1));
  if (process.pid_ > 0) {
    // The pipe closes on exec: nothing to read means that the program runs.
    int child_error = 0;
    if (::read(report[0], &child_error, sizeof child_error) == sizeof child_error) error = child_error;
  }
  close_all();
  if (error != 0) {
    return fail(ErrorCode::kIo, "cannot start " + program + ": " + std::strerror(error) +
                                    (error == ENOENT ? "; build it first (make build)" : ""));
  }
  return process;
}

Process::~Process() {
  if (pid_ > 0) terminate(kDestructorGrace);
}

std::optional<ExitStatus> Process::poll() {
  if (pid_ <= 0 || status_) return status_;
  int raw = 0;
  rusage usage{};
  const pid_t got = ::wait4(pid_, &raw, WNOHANG, &usage);
  if (got != pid_) {
    if (got < 0 && errno == ECHILD) status_ = ExitStatus{.code = -1};  // it was reaped elsewhere
    return status_;
  }
  status_ = ExitStatus{};
  if (WIFSIGNALED(raw)) {
    status_->signal = WTERMSIG(raw);
  } else {
    status_->code = WEXITSTATUS(raw);
  }
  final_usage_.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  final_usage_.resident_peak_bytes = static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
  return status_;
}

std::optional<ExitStatus> Process::wait(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!poll()) {
    if (pid_ <= 0 || std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(kPollInterval);
  }
  return status_;
}

void Process::send_signal(int signal) {
  if (running()) ::kill(-pid_, signal);
}

void Process::end_rest() const {
  if (pid_ > 0) ::kill(-pid_, SIGKILL);
}

ExitStatus Process::terminate(std::chrono::milliseconds grace) {
  if (grace.count() > 0) send_signal(SIGTERM);
  if (grace.count() <= 0 || !wait(grace)) {
    send_signal(SIGKILL);
    // A killed process ends as soon as it leaves the kernel; this bounds the wait for one that hangs there.
    constexpr std::chrono::milliseconds kKillGrace{10'000};
    wait(kKillGrace);
  }
  return status_.value_or(ExitStatus{.signal = SIGKILL});
}

ProcessUsage Process::usage() {
  if (pid_ <= 0) return {};
  return poll() ? final_usage_ : usage_of(pid_);
}

std::string executable_dir() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string text(path, static_cast<std::size_t>(length));
  return text.substr(0, text.rfind('/'));
}

std::uint64_t file_bytes(const std::string& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return error ? 0 : size;
}

std::string last_lines(const std::string& file, std::size_t lines, std::uint64_t from) {
  constexpr std::uint64_t kMaxRead = 64 << 10;
  std::ifstream in(file, std::ios::binary);
  in.seekg(0, std::ios::end);
  const auto end = static_cast<std::uint64_t>(std::max<std::streamoff>(in.tellg(), 0));
  const std::uint64_t begin = std::max(from, end > kMaxRead ? end - kMaxRead : 0);
  in.seekg(static_cast<std::streamoff>(begin));
  std::deque<std::string> kept;
  std::string line;
  while (in && std::getline(in, line)) {
    kept.push_back(std::move(line));
    if (kept.size() > lines) kept.pop_front();
  }
  if (kept.empty()) return "  (nothing)";
  std::string result;
  for (const std::string& l : kept) result += (result.empty() ? "  " : "\n  ") + l;
  return result;
}

}  // namespace tributary
