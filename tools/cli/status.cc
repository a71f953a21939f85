// tributary status and top: ask running daemons and print what they say as tables, once or every second.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/daemons.h"
#include "tools/cli/parts/table.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kAskTimeout{3000};

std::string text(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || object.at(key).is_null()) return "-";
  const Json& value = object.at(key);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

double number(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_number() ? object.at(key).get<double>() : 0.0;
}

const Json& list_of(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  return object.is_object() && object.contains(key) && object.at(key).is_array() ? object.at(key) : kEmpty;
}

std::string amount(double value, double unit, const char* name) {
  return printed("%.1f %s", value / unit, name);
}

std::string rounds(const Json& job) {
  const std::string low = text(job, "min_version"), high = text(job, "max_version");
  return low == high ? low : low + ".." + high;
}

double sum(const Json& objects, const char* key) {
  double total = 0.0;
  for (const Json& object : objects) total += number(object, key);
  return total;
}

struct Answer {
  std::string address;
  Json status;  // null: it did not answer
  std::string error;
};

// Joins one list of all coordinators among the daemons asked.
std::vector<Json> of_coordinators(const std::vector<Answer>& answers, const char* key) {
  std::vector<Json> all;
  for (const Answer& a : answers) {
    if (a.status.is_null() || !a.status.contains("coordinator")) continue;
    const Json& one = list_of(a.status.at("coordinator"), key);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::vector<Json> jobs_of(const std::vector<Answer>& answers) {
  return of_coordinators(answers, "jobs");
}

void print_servers(const std::vector<Answer>& answers) {
  Table table({"SERVER", "ADMIN", "PID", "UP", "LANES", "JOBS", "PUSHED", "ANSWERED", "REFUSED", "MEMORY", "FORMULA"});
  for (const Answer& a : answers) {
    if (a.status.is_null() || text(a.status, "kind") != "server") continue;
    const Json& lanes = list_of(a.status, "lanes");
    const Json memory = a.status.value("memory", Json::object());
    table.add({text(a.status, "index") + " of " + text(a.status, "servers"), a.address, text(a.status, "pid"),
               amount(number(a.status, "uptime_s"), 1, "s"), std::to_string(lanes.size()),
               std::to_string(list_of(a.status, "jobs").size()), amount(sum(lanes, "push_bytes"), 1e6, "MB"),
               amount(sum(lanes, "answer_bytes"), 1e6, "MB"),
               std::to_string(static_cast<std::uint64_t>(sum(lanes, "rejected") + sum(lanes, "malformed") +
                                                         sum(lanes, "unknown_job"))),
               amount(number(memory, "owned_bytes"), 1e6, "MB"), amount(number(memory, "formula_bytes"), 1e6, "MB")});
  }
  table.print();
}

// The rounds of pushes that a node keeps for lost servers.
std::string redo(const Json& job) {
  const Json kept = job.value("redo", Json());
  if (!kept.is_object()) return "-";
  std::string words = number(kept, "rounds") == 0.0 ? "nothing" : text(kept, "rounds") + " rounds";
  return words;
}

void print_workers(const std::vector<Answer>& answers) {
  Table table({"WORKER", "ADMIN", "PID", "UP", "LANES", "JOB", "PHASE", "RANKS", "ROUND", "PUSHED", "PULLED", "KEEPS"});
  for (const Answer& a : answers) {
    if (a.status.is_null() || text(a.status, "kind") != "worker") continue;
    const std::vector<std::string> own = {text(a.status, "name"), a.address, text(a.status, "pid"),
                                          amount(number(a.status, "uptime_s"), 1, "s"), text(a.status, "lanes")};
    const Json& jobs = list_of(a.status, "jobs");
    for (const Json& job : jobs) {
      const std::string ranks =
          std::to_string(list_of(job, "ranks_attached").size()) + " of " + text(job, "local_world_size");
      std::vector<std::string> row = own;
      row.insert(row.end(), {text(job, "name"), text(job, "phase"), ranks, rounds(job),
                             amount(number(job, "bytes_pushed"), 1e6, "MB"),
                             amount(number(job, "bytes_pulled"), 1e6, "MB"), redo(job)});
      table.add(std::move(row));
    }
    if (jobs.empty()) {
      std::vector<std::string> row = own;
      row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-"});
      table.add(std::move(row));
    }
  }
  table.print();
}

std::string factor(const Json& predicted, const char* key) {
  return printed("%.3f M/B", number(predicted, key));
}

// Prints the coordinator's peers, also those that were not asked, and the payload that each received and sent.
void print_daemons(const std::vector<Answer>& answers) {
  Table table({"DAEMON", "HEARD", "IN", "OUT"});
  for (const Json& peer : of_coordinators(answers, "peers")) {
    table.add({text(peer, "kind") + " " + text(peer, "name"),
               (text(peer, "alive") == "true" ? "" : "lost, ") + amount(number(peer, "last_heard_ms"), 1e3, "s ago"),
               amount(number(peer, "bytes_in"), 1e6, "MB"), amount(number(peer, "bytes_out"), 1e6, "MB")});
  }
  table.print();
  for (const Json& peer : of_coordinators(answers, "peers")) {
    if (const std::string clock = peer.value("clock", ""); !clock.empty())
      std::printf("THE CLOCK OF %s %s IS %s\n", text(peer, "kind").c_str(), text(peer, "name").c_str(), clock.c_str());
  }
}

// The last ones of the last hour: views, losses, recoveries.
void print_events(const std::vector<Answer>& answers) {
  constexpr std::size_t kMost = 8;
  const std::vector<Json> events = of_coordinators(answers, "events");
  Table table({"EVENT", "LEVEL", "WHAT"});
  for (std::size_t i = events.size() - std::min(kMost, events.size()); i < events.size(); ++i) {
    table.add({text(events[i], "time"), text(events[i], "level"), text(events[i], "text")});
  }
  table.print();
}

// Which server owns how much of each job, and what that means for the hosts' links.
void print_placement(const std::vector<Answer>& answers) {
  Table shares({"JOB", "SERVER", "PLACED", "SHARE", "BYTES", "CHUNKS"});
  Table exchanges({"JOB", "EXCHANGE", "RING", "BOTTLENECK"});
  for (const Json& job : jobs_of(answers)) {
    if (!job.contains("placement") || !job.at("placement").is_object()) continue;
    const Json& placement = job.at("placement");
    for (const Json& server : list_of(placement, "servers")) {
      const std::string colocated = text(server, "colocated");
      shares.add({text(job, "name"), text(server, "server"),
                  colocated == "true"    ? "beside a worker"
                  : colocated == "false" ? "on its own"
                                         : "-",
                  amount(100.0 * number(server, "share"), 1, "%"), amount(number(server, "bytes"), 1e6, "MB"),
                  text(server, "chunks")});
    }
    const Json predicted = placement.value("predicted", Json());
    if (predicted.is_object()) {
      exchanges.add({text(job, "name"), factor(predicted, "factor"), factor(predicted, "ring_factor"),
                     text(predicted, "bottleneck")});
    } else {
      exchanges.add({text(job, "name"), "-", "-", "not predicted: " + text(placement, "basis")});
    }
  }
  shares.print();
  exchanges.print();
}

// Prints the time of nodes for a round, where it is known, and the nodes that lag behind the others.
void print_paces(const std::vector<Answer>& answers) {
  Table table({"JOB", "NODE", "COMPUTE", "REDUCTION", "NETWORK", "LAGS"});
  for (const Json& job : jobs_of(answers)) {
    for (const Json& pace : list_of(job, "paces")) {
      const Json lag = pace.value("lags", Json());
      table.add({text(job, "name"), text(pace, "node") + " " + text(pace, "worker"),
                 amount(number(pace, "compute_ms"), 1, "ms"), amount(number(pace, "reduction_ms"), 1, "ms"),
                 amount(number(pace, "network_ms"), 1, "ms"), lag.is_object() ? text(lag, "text") : "-"});
    }
  }
  table.print();
}

// Rounds a second between two looks at the jobs.
class Rates {
 public:
  // Returns the rate of each job in `jobs` since the last look, as text.
  std::map<std::string, std::string> look(const std::vector<Json>& jobs) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - at_;
    std::map<std::string, std::string> rates;
    std::map<std::string, double> rounds;
    for (const Json& job : jobs) {
      const std::string name = text(job, "name");
      const double round = rounds[name] = number(job, "min_version");
      const auto before = rounds_.find(name);
      const bool known = before != rounds_.end() && round >= before->second;
      rates[name] = known ? printed("%.2f", (round - before->second) / passed.count()) : "-";
    }
    rounds_ = std::move(rounds);
    at_ = now;
    return rates;
  }

 private:
  std::map<std::string, double> rounds_;  // by job, at_
  std::chrono::steady_clock::time_point at_;
};

// rates: for a caller that looks repeatedly.
void print_jobs(const std::vector<Answer>& answers, Rates* rates) {
  std::vector<std::string> header = {"JOB",   "PHASE",   "VIEW",   "NODES",    "RANKS",
                                     "ROUND", "DURABLE", "CHUNKS", "LAST STOP"};
  if (rates) header.insert(header.begin() + 6, "ROUNDS/S");
  Table table(header);
  const std::vector<Json> jobs = jobs_of(answers);
  const auto a_second = rates ? std::optional(rates->look(jobs)) : std::nullopt;
  for (const Json& job : jobs) {
    std::vector<std::string> row = {
        text(job, "name"),       text(job, "finished") == "true" ? "finished" : text(job, "phase"),
        text(job, "view"),       text(job, "joined") + " of " + text(job, "nodes"),
        text(job, "world_size"), rounds(job),
        text(job, "committed"),  text(job, "chunks"),
        text(job, "last_stop")};
    if (a_second) row.insert(row.begin() + 6, a_second->at(text(job, "name")));
    table.add(std::move(row));
  }
  table.print();
  Table waits({"JOB", "WAITS FOR"});
  for (const Json& job : jobs) {
    if (const std::string who = job.value("waiting_for", ""); !who.empty()) waits.add({text(job, "name"), who});
  }
  waits.print();
  Table stalls({"JOB", "NO ROUND FOR", "BECAUSE"});
  for (const Json& job : jobs) {
    if (const std::string why = job.value("why_no_round", ""); !why.empty())
      stalls.add({text(job, "name"), amount(number(job, "stalled_ms"), 1e3, "s"), why});
  }
  stalls.print();
  Table figures({"JOB", "OF ROUND", "TRAINERS SAY"});
  for (const Json& job : jobs) {
    const Json said = job.value("figures", Json());
    if (!said.is_object()) continue;
    std::string words;
    const Json means = said.value("means", Json::object());
    for (const auto& [name, mean] : means.items()) {
      const std::string value = mean.is_number() ? printed("%.6g", mean.get<double>()) : "not finite";
      words += (words.empty() ? "" : ", ") + name + " " + value;
    }
    figures.add({text(job, "name"), text(said, "round"), words});
  }
  figures.print();
  Table lost({"JOB", "NOT SAVED"});
  for (const Json& job : jobs) {
    if (const std::string why = job.value("not_saved", ""); !why.empty()) lost.add({text(job, "name"), why});
    if (const std::string why = job.value("not_copied", ""); !why.empty()) {
      lost.add({text(job, "name"), "not copied: " + why});
    }
    if (const std::string why = job.value("no_checkpoint", ""); !why.empty()) {
      lost.add({text(job, "name"), "no checkpoint: " + why});
    }
  }
  lost.print();
  Table snapshots({"JOB", "WRITES THE SNAPSHOT OF ROUND", "WAITS FOR SERVERS"});
  for (const Json& job : jobs) {
    const Json snapshot = job.value("snapshot", Json());
    if (text(snapshot, "under_way") == "-") continue;
    snapshots.add({text(job, "name"), text(snapshot, "under_way"), list_of(snapshot, "waits_for").dump()});
  }
  snapshots.print();
  Table mixed({"JOB", "NOT COMPUTED WITH ONE KIND OF KERNELS"});
  for (const Json& job : jobs) {
    std::string kinds;
    for (const Json& kind : list_of(job, "computed_with"))
      kinds += (kinds.empty() ? "" : " and ") + kind.get<std::string>();
    if (list_of(job, "computed_with").size() > 1) mixed.add({text(job, "name"), kinds});
  }
  mixed.print();
}

std::vector<Answer> ask(const std::vector<std::string>& addresses, const std::string& token) {
  std::vector<Answer> answers;
  for (const std::string& address : addresses) {
    Answer answer{.address = address, .status = nullptr, .error = {}};
    const auto body = http_get(address, "/status", kAskTimeout, token);
    if (body) answer.status = ordered_json_in(*body);
    if (!body) {
      answer.error = body.error().message;
    } else if (!answer.status.is_object()) {
      answer.status = nullptr;
      answer.error = "http://" + address + "/status did not answer with JSON; is that a daemon of Tributary?";
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

bool all_answered(const std::vector<Answer>& answers) {
  return std::ranges::all_of(answers, [](const Answer& a) { return a.error.empty(); });
}

void print_tables(const std::vector<Answer>& answers, Rates* rates) {
  print_jobs(answers, rates);
  print_paces(answers);
  print_placement(answers);
  print_servers(answers);
  print_workers(answers);
  print_daemons(answers);
  print_events(answers);
}

int show(const std::vector<std::string>& addresses, const std::string& token, bool json) {
  const std::vector<Answer> answers = ask(addresses, token);
  if (json) {
    Json daemons = Json::array();
    for (const Answer& a : answers) {
      daemons.push_back(
          {{"admin", a.address}, {"status", a.status}, {"error", a.error.empty() ? Json(nullptr) : Json(a.error)}});
    }
    std::printf("%s\n", Json{{"daemons", daemons}}.dump().c_str());
  } else {
    print_tables(answers, nullptr);
  }
  for (const Answer& a : answers) {
    if (!a.error.empty()) std::fprintf(stderr, "tributary status: %s\n", a.error.c_str());
  }
  return all_answered(answers) ? 0 : 1;
}

// Once a second, in place on a terminal; times: 0 until it is interrupted.
int show_again(const std::vector<std::string>& addresses, const std::string& token, std::uint64_t times) {
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  Rates rates;
  for (std::uint64_t look = 1;; ++look) {
    const auto next = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    const std::vector<Answer> answers = ask(addresses, token);
    if (terminal) std::printf("\033[H\033[J");
    print_tables(answers, &rates);
    for (const Answer& a : answers) {
      if (!a.error.empty()) std::printf("%s\n", a.error.c_str());
    }
    if (std::fflush(stdout) != 0) return 1;  // the reader is gone
    if (look == times) return all_answered(answers) ? 0 : 1;
    std::this_thread::sleep_until(next);
  }
}

// Which daemons are asked, and with what token.
struct AskedDaemons {
  std::string base_dir;
  std::vector<std::string> admin;
  std::string token_file;

  void add_to(CliCommand command) {
    command->add_option("--base-dir", base_dir, "folder of a running `tributary up`")->type_name("FOLDER");
    command->add_option("--admin", admin, "admin address of a daemon; may be repeated")->type_name("HOST:PORT");
    add_token_option(command, token_file);
  }

  // Returns use(addresses, token); an exit status if there are none, with the reason on standard error.
  int with(const char* command, const auto& use) const {
    const auto refused = [&](const std::string& why, int exit_status) {
      std::fprintf(stderr, "tributary %s: %s\n", command, why.c_str());
      return exit_status;
    };
    std::vector<std::string> addresses = admin;
    if (!base_dir.empty()) {
      const auto found = admin_addresses(base_dir);
      if (!found) return refused(found.error().message, 1);
      addresses.insert(addresses.end(), found->begin(), found->end());
    }
    if (addresses.empty()) return refused("whom to ask? give --base-dir or --admin", 2);
    const auto token = admin_token(token_file, base_dir);
    return token ? use(addresses, *token) : refused(token.error().message, 1);
  }
};

}  // namespace

void add_status(CliCommand app, int& exit_status) {
  struct StatusOptions {
    AskedDaemons asked;
    bool json = false;
  };
  auto options = std::make_shared<StatusOptions>();
  CliCommand status = app.add_subcommand("status", "ask running daemons how they are");
  status->description("Asks daemons' admin endpoints and prints jobs, servers and workers as tables.");
  status->footer(
      "\nExamples:\n"
      "  tributary status --base-dir runs/fashion-mnist\n"
      "  tributary status --admin 10.0.0.1:7071 --admin 10.0.0.2:7071 --json\n\n"
      "EXCHANGE is the predicted time of a round's exchange on the hosts' links, RING that of an fp32 ring "
      "all-reduce:\n"
      "M is the model in fp32, B the slowest link of a host with workers. KEEPS is what a node keeps of its pushes "
      "for\n"
      "lost servers (recovery.redo_mb).\n\n"
      "--json: {\"daemons\": [{admin, status (as the daemon's /status has it, or null), error}]}\n"
      "Exit status: 0 if every daemon answered, else 1.");
  options->asked.add_to(status);
  status->add_flag("--json", options->json, "print one JSON object");
  status->callback([options, &exit_status] {
    exit_status = options->asked.with("status", [&](const auto& addresses, const std::string& token) {
      return show(addresses, token, options->json);
    });
  });
}

void add_top(CliCommand app, int& exit_status) {
  struct TopOptions {
    AskedDaemons asked;
    std::uint64_t times = 0;
  };
  auto options = std::make_shared<TopOptions>();
  CliCommand top = app.add_subcommand("top", "the same once a second, with rounds a second");
  top->description("What `tributary status` prints, once a second until Ctrl-C, with the rounds a second of each job.");
  top->footer(
      "\nExample:\n"
      "  tributary top --base-dir runs/fashion-mnist\n\n"
      "Exit status: 0 if every daemon answered the last time, else 1.");
  options->asked.add_to(top);
  top->add_option("--times", options->times, "end after so many looks (default: at Ctrl-C)")->type_name("N");
  top->callback([options, &exit_status] {
    exit_status = options->asked.with("top", [&](const auto& addresses, const std::string& token) {
      return show_again(addresses, token, options->times);
    });
  });
}

}  // namespace tributary::cli
