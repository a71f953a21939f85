// tributary lab: several hosts with limited links, emulated on this machine, and runs on them.
#include "tools/lab/lab.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/printed.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/stop_signals.h"
#include "tools/lab/lab_run.h"
#include "tools/lab/network_namespace.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFailed = 1;
constexpr int kCannot = 2;  // no rights, no programs, a wrong file: nothing was begun

constexpr const char* kLabFooter = R"(
A lab file (configs/lab-*.toml are examples) names hosts, the rates of their links, and which daemon runs on which. Hosts are network namespaces
on a bridge of their own; nothing of this machine's network is touched. Needs root (or CAP_NET_ADMIN and CAP_SYS_ADMIN) and the programs ip and tc.

  sudo tributary lab up LAB.toml --verify         bring it up and measure every link with iperf3
  sudo tributary lab run LAB.toml --exchange      time of a round without computing, beside model bytes / goodput
  sudo tributary lab run LAB.toml --baseline gloo the same with Gloo's own ring all-reduce
  sudo tributary lab run LAB.toml                 train the file's job
  sudo tributary lab down LAB.toml                take it down, and whatever a crash left of it; --all: every lab

`lab run` uses a lab that is up, or brings it up for the run. It measures: Ctrl-C ends all processes, keeps nothing of the training, and takes down
what the run brought up; twice leaves at once, and `lab down` then removes what is left. Exit status: 0 done, 1 something failed, 2 it cannot be begun.)";

int complain(const char* what, const Error& error, int status = kFailed) {
  std::fprintf(stderr, "tributary lab %s: %s\n", what, error.message.c_str());
  return status;
}

std::string mbit(double value) {
  return printed("%.4g Mbit/s", value);
}

struct LabArguments {
  std::string file;
  bool verify = false, json = false;
  double verify_seconds = 1.0;
};

void add_common(CliCommand command, LabArguments& a) {
  command->add_option("lab", a.file, "the lab's TOML file")->required()->type_name("LAB.toml");
  command->add_flag("--verify", a.verify, "measure every link with iperf3 first");
  command->add_option("--verify-seconds", a.verify_seconds, "of measuring per direction, after a second of warm-up")
      ->check(in_range(0.5, 60.0))
      ->capture_default_str();
  command->add_flag("--json", a.json, "print one JSON object");
}

// Shows what was measured; the links that are not as they should be.
std::vector<std::string> show_links(const lab::Lab& lab, std::FILE* out) {
  std::vector<std::string> bad;
  for (const lab::LinkCheck& c : lab.links()) {
    std::fprintf(out, "  %-12s -> %-12s %s of %s possible (%.3f), %llu retransmitted%s\n", c.from.c_str(), c.to.c_str(),
                 mbit(c.mbit).c_str(), mbit(c.expected_mbit).c_str(), c.ratio(),
                 static_cast<unsigned long long>(c.retransmits), c.ok() ? "" : "  <- outside 3 %");
    if (!c.ok()) bad.push_back(c.from + " -> " + c.to);
  }
  return bad;
}

Json describe(const lab::Lab& lab) {
  Json hosts = Json::array(), links = Json::array();
  for (std::size_t i = 0; i < lab.config().hosts.size(); ++i) {
    const lab::LabHost& h = lab.config().hosts[i];
    const lab::PlannedHost& p = lab.plan().hosts[i];
    hosts.push_back({{"name", h.name},
                     {"address", p.address},
                     {"namespace", p.network_namespace},
                     {"worker", h.worker},
                     {"server", h.server},
                     {"up_mbit", h.up_mbit},
                     {"down_mbit", h.down_mbit},
                     {"bandwidth", h.bandwidth}});
  }
  for (const lab::LinkCheck& c : lab.links()) links.push_back(lab::to_json(c));
  return {{"lab", lab.config().name},
          {"hosts", std::move(hosts)},
          {"links", std::move(links)},
          {"goodput_bytes_per_s", lab::goodput_bytes_per_s(lab.config(), lab.links())}};
}

// The beginning of `up` and `run`. On failure: an error, and in `status` the caller's exit status.
Result<std::unique_ptr<lab::Lab>> bring_up(const LabArguments& a, bool transient,
                                           const std::function<bool()>& interrupted, int& status) {
  status = kCannot;
  const auto config = lab::load_lab_config(a.file);
  if (!config) return tl::unexpected(config.error());
  if (auto ok = lab::may_make_namespaces(); !ok) return tl::unexpected(ok.error());
  status = kFailed;
  auto lab = lab::Lab::up(*config, transient, interrupted);
  if (!lab) return lab;
  if (a.verify) {
    if (auto ok = (*lab)->verify(a.verify_seconds, interrupted); !ok) {
      if (!(*lab)->was_up()) [[maybe_unused]]
        const auto undone = (*lab)->down();
      return tl::unexpected(ok.error());
    }
  }
  return lab;
}

int up(const LabArguments& a) {
  StopSignals signals;
  int status = 0;
  auto lab = bring_up(
      a, false, [&] { return signals.taken_first(); }, status);
  if (!lab) return complain("up", lab.error(), status);
  std::FILE* out = a.json ? stderr : stdout;
  std::fprintf(out, "lab %s is up%s\n", (*lab)->config().name.c_str(), (*lab)->was_up() ? " (it was already)" : "");
  for (std::size_t i = 0; i < (*lab)->config().hosts.size(); ++i) {
    const lab::LabHost& h = (*lab)->config().hosts[i];
    std::fprintf(out, "  %-12s %-11s up %s, down %s, %s\n", h.name.c_str(), (*lab)->plan().hosts[i].address.c_str(),
                 mbit(h.up_mbit).c_str(), mbit(h.down_mbit).c_str(),
                 h.worker && h.server ? "worker and server"
                 : h.worker           ? "worker"
                                      : "server");
  }
  const auto bad = show_links(**lab, out);
  if (a.json) std::printf("%s\n", describe(**lab).dump().c_str());
  if (bad.empty()) return 0;
  return complain("up", {ErrorCode::kUnavailable, std::to_string(bad.size()) +
                                                      " links are not within 3 % of what their rates allow (" +
                                                      bad.front() + " ...); is the machine busy?"});
}

struct RunArguments : LabArguments {
  lab::ExchangeOptions exchange;
  std::string mode, baseline, base_dir;
  bool only_exchange = false;
};

// Prints the resources that an exchange or a job used.
void print_usage(const Json& r) {
  std::printf("%.2f CPU-seconds, %d drops, %d retransmissions\n", r.at("cpu_seconds").get<double>(),
              r.at("drops").get<int>(), r.at("retransmits").get<int>());
  const auto rounds = r.at("rounds").get<double>();
  for (const auto& h : r.at("hosts")) {
    std::printf("  %-12s %.2f MB sent, %.2f MB received a round\n", h.at("name").get<std::string>().c_str(),
                h.at("wire_bytes_sent").get<double>() * 1e-6 / rounds,
                h.at("wire_bytes_received").get<double>() * 1e-6 / rounds);
  }
}

void print_exchange(const Json& r) {
  const auto number = [&](const char* key) { return r.at(key).get<double>(); };
  std::printf("%s: %.4f s a round (median of %d; %.4f s from first to last), %.3f x model / goodput\n",
              r.at("mode").get<std::string>().c_str(), number("round_seconds"), r.at("rounds").get<int>(),
              number("period_seconds"), number("ratio"));
  std::printf("model %.1f MB, goodput %.2f MB/s (%s)\n", number("model_bytes") * 1e-6,
              number("goodput_bytes_per_s") * 1e-6, r.at("goodput_from").get<std::string>().c_str());
  print_usage(r);
}

void print_job(const Json& r) {
  const auto& split = r.at("step_split");
  const auto part = [&](const char* key) { return split.at(key).get<double>(); };
  if (r.at("step_seconds").is_number()) {
    std::printf("%s, %s: %.1f ms a step (median): compute %.1f, node reduction %.1f, wait for the exchange %.1f\n",
                r.at("job").get<std::string>().c_str(), r.at("mode").get<std::string>().c_str(),
                1e3 * r.at("step_seconds").get<double>(), part("compute_ms"), part("reduce_ms"), part("wait_ms"));
  }
  std::printf("%d rounds in %.1f s", r.at("rounds").get<int>(), r.at("seconds").get<double>());
  if (r.at("train_loss").is_number()) std::printf(", training loss %.4f", r.at("train_loss").get<double>());
  if (r.at("test_accuracy").is_number()) std::printf(", test accuracy %.4f", r.at("test_accuracy").get<double>());
  std::printf("\n");
  print_usage(r);
  std::printf("digest %s\n", r.at("digest").get<std::string>().c_str());
}

int run(RunArguments& a) {
  StopSignals signals;
  const auto interrupted = [&] { return signals.taken_first(); };
  int status = 0;
  auto lab = bring_up(a, true, interrupted, status);
  if (!lab) return complain("run", lab.error(), status);
  if (!show_links(**lab, stderr).empty())
    std::fprintf(stderr, "tributary lab run: links are not as their rates say; the figures below show that too\n");
  const lab::LabConfig& config = (*lab)->config();
  lab::ExchangeOptions& e = a.exchange;
  e.run.base_dir = a.base_dir.empty() ? "runs/" + config.name : a.base_dir;
  e.run.interrupted = interrupted;
  if (!a.mode.empty()) e.run.overrides.insert(e.run.overrides.begin(), "job.mode=" + a.mode);
  if (e.model_bytes == 0) e.model_bytes = config.exchange.model_bytes;
  if (e.rounds == 0) e.rounds = config.exchange.rounds;
  e.warmup = config.exchange.warmup;
  e.optimizer = config.exchange.optimizer;
  const bool trains = !a.only_exchange && a.baseline.empty();
  const auto result = a.baseline == "gloo" ? lab::run_gloo_ring(**lab, e)
                      : trains             ? lab::run_job(**lab, e.run)
                                           : lab::run_exchange(**lab, e);
  if (!result) return complain("run", result.error());
  if (!(*lab)->was_up()) {
    if (auto ok = (*lab)->down(); !ok) return complain("run", ok.error());
  }
  if (a.json) {
    std::printf("%s\n", result->dump().c_str());
  } else if (trains) {
    print_job(*result);
  } else {
    print_exchange(*result);
  }
  return 0;
}

struct DownArguments {
  std::string which;
  bool all = false;
};

int down(const DownArguments& a) {
  if (a.which.empty() != a.all)
    return complain("down", {ErrorCode::kInvalidArgument, "give a lab's file or name, or --all"}, kCannot);
  if (auto ok = lab::may_make_namespaces(); !ok) return complain("down", ok.error(), kCannot);
  std::vector<std::string> names = lab::labs_found();
  if (!a.all) {
    names = {a.which};
    if (std::filesystem::exists(a.which)) {
      const auto config = lab::load_lab_config(a.which);
      if (!config) return complain("down", config.error(), kCannot);
      names = {config->name};
    }
    if (!lab::is_lab_name(names[0])) {
      return complain("down", {ErrorCode::kInvalidArgument, a.which + " is neither a file nor the name of a lab"},
                      kCannot);
    }
  }
  int status = 0;
  for (const std::string& name : names) {
    auto lock = lab::LabLock::take(name);
    if (!lock) {
      status = complain("down", lock.error());
      continue;
    }
    const auto removed = lab::take_down(std::move(*lock));
    if (!removed) {
      status = complain("down", removed.error());
    } else if (removed->namespaces == 0) {
      std::printf("lab %s: nothing was up\n", name.c_str());
    } else {
      std::printf("lab %s is down: %zu processes ended, %zu namespaces removed\n", name.c_str(), removed->processes,
                  removed->namespaces);
    }
  }
  if (a.all && names.empty()) std::printf("no lab is up\n");
  return status;
}

void add_lab_run(CliCommand lab_app, int& exit_status) {
  auto a = std::make_shared<RunArguments>();
  a->exchange.model_bytes = 0;
  a->exchange.rounds = 0;
  CliCommand command = lab_app.add_subcommand("run", "run a job, or only its exchange, on the lab's hosts");
  add_common(command, *a);
  command->add_option("--mode", a->mode, "of the job: sync or allreduce (default: as the job says)");
  command->add_option("--set", a->exchange.run.overrides, "override a key of the job; may be repeated")
      ->type_name("KEY=VALUE")
      ->once_each();
  command->add_option("--base-dir", a->base_dir, "folder for files of the run (default: runs/NAME of the lab)")
      ->type_name("FOLDER");
  command->add_flag("--exchange", a->only_exchange, "no computing: the time of a round's exchange");
  command->add_option("--baseline", a->baseline, "exchange with a rival instead: gloo")->check(one_of({"gloo"}));
  command->add_option("--model-bytes", a->exchange.model_bytes, "fp32 parameters of an exchange, as 16MiB")
      ->transform(as_bytes());
  command->add_option("--rounds", a->exchange.rounds, "measured, of an exchange");
  add_secure(command, a->exchange.run.secure);
  command->callback([a, &exit_status] { exit_status = run(*a); });
}

}  // namespace

void add_lab(CliCommand app, int& exit_status) {
  CliCommand command = app.add_subcommand("lab", kLabHelp);
  command->require_subcommand(1);
  command->footer(kLabFooter);
  auto up_arguments = std::make_shared<LabArguments>();
  CliCommand up_command = command->add_subcommand("up", "bring a lab up");
  add_common(up_command, *up_arguments);
  up_command->callback([up_arguments, &exit_status] { exit_status = up(*up_arguments); });
  add_lab_run(*command, exit_status);
  auto down_arguments = std::make_shared<DownArguments>();
  CliCommand down_command = command->add_subcommand("down", "take a lab down, or what a crash left of it");
  down_command->add_option("lab", down_arguments->which, "its file or its name")->type_name("LAB");
  down_command->add_flag("--all", down_arguments->all, "every lab of which anything is left");
  down_command->callback([down_arguments, &exit_status] { exit_status = down(*down_arguments); });
}

}  // namespace tributary::cli
