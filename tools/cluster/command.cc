#include "tools/cluster/command.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tributary {
namespace {

constexpr std::size_t kMaxOutput = 16u << 20;

// A file without a name: what the child writes is read back from it.
class Scratch {
 public:
  Scratch() : fd_(::memfd_create("tributary-command", MFD_CLOEXEC)) {}
  ~Scratch() {
    if (fd_ >= 0) ::close(fd_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  bool ok() const { return fd_ >= 0; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  std::string text() const {
    std::string result;
    char buffer[16 << 10];
    ssize_t got = 0;
    while (result.size() < kMaxOutput &&
           (got = ::pread(fd_, buffer, sizeof buffer, static_cast<off_t>(result.size()))) > 0) {
      result.append(buffer, static_cast<std::size_t>(got));
    }
    return result;
  }

 private:
  int fd_;
};

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* path = ::secure_getenv("PATH");
  std::string folders = std::string(path ? path : "") + ":/usr/sbin:/sbin:/usr/bin:/bin";
  for (std::size_t from = 0; from < folders.size();) {
    const std::size_t to = std::min(folders.find(':', from), folders.size());
    const std::string candidate = folders.substr(from, to - from) + "/" + name;
    if (to > from && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    from = to + 1;
  }
  return "";
}

std::string command_text(const std::vector<std::string>& argv) {
  std::string text;
  for (const std::string& word : argv) text += (text.empty() ? "" : " ") + word;
  return text;
}

Result<std::string> run_command(const Command& command) {
  std::vector<std::string> argv = command.argv;
  argv.at(0) = find_program(argv[0]);
  if (argv[0].empty()) {
    return fail(ErrorCode::kNotFound, "the program " + command.argv[0] + " is not installed, or not in PATH");
  }
  const Scratch scratch;
  if (!scratch.ok()) return fail(ErrorCode::kIo, std::string("no memory file: ") + std::strerror(errno));
  auto process =
      Process::spawn({.argv = argv, .log_file = scratch.path(), .network_namespace = command.network_namespace});
  if (!process) return tl::unexpected(process.error());
  const auto status = process->wait(command.timeout);
  if (!status) {
    process->terminate(std::chrono::milliseconds(0));
    return fail(ErrorCode::kTimeout, "`" + command_text(command.argv) + "` did not end within " +
                                         std::to_string(command.timeout.count()) + " ms and was killed");
  }
  std::string text = scratch.text();
  if (!status->ok()) {
    const std::string said = trimmed(std::move(text));
    return fail(ErrorCode::kUnavailable,
                "`" + command_text(command.argv) + "` " + status->describe() + (said.empty() ? "" : ": " + said));
  }
  return text;
}

}  // namespace tributary
