// The commands of the notes for users that README names first, in their order, as a new reader types them: every line
// of their `sh` blocks is run, or is named here with the reason why not. README's own: tests/test_readme.py.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "common/config/config.h"
#include "tests/e2e/e2e.h"
#include "tests/unit/required.h"

namespace tributary::e2e::notes_test {
namespace {

enum class Way { kRun, kWhileTraining, kNotRun };

struct Rule {
  std::string begins;  // of the commands that it is for
  Way way = Way::kRun;
  std::string more;  // arguments that make it short; or, if it is not run, why
};

// The first that fits counts; a command that none fits is run as it is.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"pip install tributary-", Way::kNotRun, "a wheel packs for minutes; test_wheel"},
      {"tributary run", Way::kNotRun, "a trainer of the reader's own; test_run"},
      {"torchrun ", Way::kNotRun, "torch, and other machines; python/tests/begin/test_launchers.py"},
      {"for i in 0 1 2 3; do", Way::kNotRun, "other machines; test_starting starts parts by hand"},
      {"NODE=", Way::kNotRun, "other machines"},
      {"tributary bench compare", Way::kNotRun, "root, and minutes; test_lab"},
      {"tributary bench torch", Way::kNotRun, "root, torch, and minutes; python/tests/steps/test_bench.py"},
      {"bench/torch_step.py", Way::kNotRun, "torch, and minutes"},
      {"tributary bench ", Way::kNotRun, "measures, on a machine that does nothing else; test_up, unit tests"},
      {"ssh ", Way::kNotRun, "another machine; test_page opens the page"},
      {"sudo ", Way::kNotRun, "root, and this machine's own system; test_deb"},
      {"man ", Way::kNotRun, "the package's; test_command_lines"},
      {"kubectl ", Way::kNotRun, "a cluster of Kubernetes; test_manifests"},
      {"sbatch ", Way::kNotRun, "a cluster of Slurm; test_slurm"},
      {"tributary keys ", Way::kNotRun, "writes below /etc; test_keys, test_security"},
      {"tributary trace ", Way::kNotRun, "a job that trains for long enough; test_trace"},
      {"tributary lab ", Way::kNotRun, "root; test_lab"},
      {"tributary chaos ", Way::kNotRun, "minutes; test_chaos"},
      {"tributary checkpoint restore", Way::kNotRun, "a cluster on other machines; test_checkpoints"},
      {"tributary plan --measure", Way::kWhileTraining, ""},
      {"tributary checkpoint", Way::kWhileTraining, ""},
      {"tributary up", Way::kRun, " --set train.max_rounds=400"},
      {"tributary doctor --", Way::kNotRun, "a daemon's file, a cluster; test_doctor_cluster"},
      {"tributary doctor", Way::kRun, " || test $? = 1"},  // 1: this machine has a problem
  };
  return all;
}

std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? std::string() : line.substr(begin);
}

// A command a line, but for what is indented below its first line, up to "done".
std::vector<std::string> commands_of(const std::string& note) {
  std::vector<std::string> commands;
  std::istringstream in(note);
  std::size_t indent = 0;
  bool inside = false, looping = false;
  for (std::string line; std::getline(in, line);) {
    const std::string text = trimmed(line);
    if (text.starts_with("```")) {
      inside = !inside && text == "```sh";
      indent = line.size() - text.size();
      continue;
    }
    if (!inside || text.empty()) continue;
    if (looping || line.size() - text.size() > indent) {
      commands.back() += "\n" + text;
    } else {
      commands.push_back(text);
    }
    if (text.starts_with("for ")) looping = true;
    if (text.starts_with("done")) looping = false;
  }
  return commands;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

TEST_CASE("the commands of the notes for users do what they say, in their order") {
  if (!std::filesystem::exists(TrainConfig{}.data_dir)) {
    std::printf("skipped: no Fashion-MNIST in %s\n", TrainConfig{}.data_dir.c_str());
    return;
  }
  const TempDir dir;
  std::filesystem::create_directory_symlink(std::string(TRIBUTARY_SOURCE_DIR) + "/configs", dir / "configs");
  std::filesystem::create_directories(dir / "checkpoints");
  const auto spawn = [&](const std::string& command, const std::string& log) {
    std::filesystem::remove(log);
    const std::string path = std::string(TRIBUTARY_BIN_DIR) + ":" + std::getenv("PATH");
    return required(Process::spawn({.argv = {"/bin/bash", "-c", "cd '" + dir.path() + "' && " + command},
                                    .log_file = log,
                                    .environment = {{"PATH", path}}}));
  };
  const auto run = [&](const std::string& command) {
    Process process = spawn(command, dir / "log");
    const auto status = process.wait(2 * kPatience);
    CAPTURE(command);
    INFO(last_lines(dir / "log", 30));
    REQUIRE(status);
    CHECK(status->ok());
  };

  std::vector<std::string> beside;
  std::vector<bool> used(rules().size());
  int commands = 0;
  std::string text;
  for (const char* file : {"/docs/training.md", "/docs/machines.md", "/docs/packages.md", "/docs/clusters.md",
                           "/docs/watching.md", "/docs/measuring.md"})
    text += text_of(std::string(TRIBUTARY_SOURCE_DIR) + file) + "\n";
  for (const std::string& line : commands_of(text)) {
    ++commands;
    // A comment after the command, which more arguments would otherwise be part of.
    const auto comment = line.find(" #");
    std::string command = comment == std::string::npos ? line : line.substr(0, comment);
    command = replaced(command, "/shared/checkpoints", dir / "checkpoints");
    const auto rule =
        std::ranges::find_if(rules(), [&](const Rule& candidate) { return line.starts_with(candidate.begins); });
    if (rule != rules().end()) used[static_cast<std::size_t>(rule - rules().begin())] = true;
    const Way way = rule == rules().end() ? Way::kRun : rule->way;
    if (way == Way::kNotRun) continue;
    if (way == Way::kWhileTraining) {
      beside.push_back(command);
      continue;
    }
    if (rule != rules().end()) command += rule->more;
    run(command);
  }
  CHECK(commands > 30);
  for (std::size_t i = 0; i < used.size(); ++i) {
    CHECK_MESSAGE(used[i], "nothing has a command that begins with '" << rules()[i].begins << "': drop its rule");
  }

  // Commands for another terminal run during README's job. Some have an answer only after some rounds, and a
  // checkpoint's name has a round that is not known before.
  Process training = spawn(
      "exec tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2 --fresh "
      "--set train.epochs=1000",
      dir / "training.log");
  CHECK(beside.size() >= 5);
  for (const std::string& command : beside) {
    std::string saved = "fashion-mnist-round-400";
    for (const auto& entry : std::filesystem::directory_iterator(dir / "checkpoints")) {
      if (entry.path().filename().string().starts_with("fashion-mnist-round-")) saved = entry.path().filename();
    }
    const std::string now = replaced(command, "fashion-mnist-round-400", saved);
    CAPTURE(now);
    const bool done = eventually([&] {
      REQUIRE(training.running());
      const auto status = spawn(now, dir / "log").wait(2 * kPatience);
      return status && status->ok();
    });
    INFO(last_lines(dir / "training.log", 10) << last_lines(dir / "log", 30));
    CHECK(done);
  }
  training.send_signal(SIGINT);
  const auto status = required(training.wait(kPatience));
  CHECK(status.signal == 0);
}

}  // namespace
}  // namespace tributary::e2e::notes_test
