// `tributary logs`: what the daemons of a cluster wrote, in order.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "tools/cli/log_merge.h"
#include "tools/cli/parts/commands.h"

namespace tributary::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{200};  // between two looks at files that may have grown

struct LogsArguments {
  std::vector<std::string> paths;
  LogFilter filter;
  bool follow = false;
};

// Returns all files *.log of a folder, those in logs/ of a run's folder. kNotFound: there are none.
Result<std::vector<std::string>> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const fs::path& folder : {fs::path(path), fs::path(path) / "logs"}) {
      std::error_code error;
      for (const auto& entry : fs::directory_iterator(folder, error)) {
        if (entry.path().extension() == ".log") files.push_back(entry.path().string());
      }
    }
    if (files.size() == before)
      return fail(ErrorCode::kNotFound, "there is no *.log in " + path + " nor in " + path +
                                            "/logs; give the files that [log] file names, or the folder of a run");
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

Status run(const LogsArguments& a) {
  auto merge = files_of(a.paths).and_then([](const auto& files) { return LogMerge::open(files); });
  if (!merge) return tl::unexpected(merge.error());
  const auto print = [&](const std::string& name, const std::string& line, const std::optional<LogLine>& parsed) {
    if (!lets_through(a.filter, parsed)) return;
    if (parsed) {
      std::printf("%s %-7s [%s] %s\n", parsed->time.c_str(), parsed->level.c_str(), name.c_str(), parsed->text.c_str());
    } else {
      std::printf("[%s] %s\n", name.c_str(), line.c_str());
    }
  };
  do {
    merge->read(print);
    std::fflush(stdout);
    if (a.follow) std::this_thread::sleep_for(kLook);
  } while (a.follow);
  return {};
}

}  // namespace

void add_logs(CliCommand app, int& exit_status) {
  auto a = std::make_shared<LogsArguments>();
  CliCommand command = app.add_subcommand("logs", "what the daemons of a cluster wrote, in the order of time");
  command.footer(
      "Text and JSON ([log] format) may be mixed. Lines are shown as text, with their file's name. Clocks of machines "
      "that differ show: the\n"
      "order is that of the times written. Under systemd: journalctl -u 'tributary-*' has them.");
  command->add_option("paths", a->paths, "files, or folders: of a `tributary up` its --base-dir")
      ->required()
      ->type_name("PATH");
  command->add_option("--level", a->filter.level, "and above")
      ->check(one_of({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  command->add_option("--job", a->filter.job, "leave out lines that are about other jobs")->type_name("NAME");
  command->add_flag("-f,--follow", a->follow, "go on with what is added, until Ctrl-C");
  command->callback([a, &exit_status] {
    if (const Status done = run(*a); !done) {
      std::fprintf(stderr, "tributary logs: %s\n", done.error().message.c_str());
      exit_status = kExitFailed;
    }
  });
}

}  // namespace tributary::cli
