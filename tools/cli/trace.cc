// tributary trace: rounds to come of a running job as a file for Perfetto, and what binds the job (docs/trace.md).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "common/base/quantity.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/orders.h"
#include "tools/cli/parts/table.h"
#include "tools/cli/plan/plan_measure.h"
#include "tools/trace/trace_clocks.h"
#include "tools/trace/trace_file.h"
#include "tools/trace/trace_sums.h"
#include "tools/trace/trace_verdict.h"

namespace tributary::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTracePoll{200};
constexpr std::chrono::seconds kBeginPatience{20};  // until rounds can be named

struct TraceOptions {
  Cluster cluster;
  std::string job;
  std::uint64_t rounds = 20;
  std::string out = "trace.json";
};

Result<std::string> order(const AdminPort& admin, const TraceOptions& options) {
  const std::string body =
      Json{{"job", options.job}, {"rounds", options.rounds}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const auto until = Clock::now() + kBeginPatience;; std::this_thread::sleep_for(kTracePoll)) {
    const auto answer = ask(admin, "/trace/order", body);
    if (answer) return "/trace/" + answer->value("id", Json(0)).dump();
    if (answer.error().code != ErrorCode::kTimeout || Clock::now() >= until) return tl::unexpected(answer.error());
  }
}

// The coordinator ends a trace whose job gets no round done, so this ends.
Result<trace::Data> fetch(const AdminPort& admin, const std::string& path) {
  bool told = false;
  while (true) {
    const auto status = ask(admin, path, std::nullopt);
    if (!status) return tl::unexpected(status.error());
    auto data = trace::data_of(*status);
    if (!data) return data;
    if (!std::exchange(told, true)) {
      std::fprintf(stderr, "rounds %ju to %ju of job '%s' are recorded\n", std::uintmax_t{data->first.value},
                   std::uintmax_t{data->last.value}, data->job.c_str());
    }
    if (!status->value("over", false)) {
      std::this_thread::sleep_for(kTracePoll);
      continue;
    }
    const auto parts = status->value("parts", std::uint64_t{0});
    for (std::uint64_t part = 0; part < parts; ++part) {
      const auto piece = ask(admin, path + "/" + std::to_string(part), std::nullopt);
      if (!piece) return tl::unexpected(piece.error());
      if (const Status added = add_piece(*data, *piece); !added) return tl::unexpected(added.error());
    }
    return data;
  }
}

// A scenario from the coordinator's status of the job and the trace's rates: bytes of a round over the time that they
// were under way.
std::optional<Scenario> exchange_of(const nlohmann::json& status, const trace::Data& data, const trace::Sums& sums) {
  Measured m;
  m.job = data.job;
  std::set<std::uint32_t> servers;
  for (const trace::Track& track : data.tracks) {
    if (track.daemon.server) servers.insert(track.daemon.number);
  }
  m.daemons = m.servers = static_cast<std::uint32_t>(servers.size());
  read_coordinators_job(status, m);
  if (m.payload_bytes <= 0.0) return std::nullopt;
  const double push = m.payload_bytes * m.wire.push, pull = m.payload_bytes * m.wire.pull;
  for (const trace::NodeSums& node : sums.nodes) {
    if (node.out_s <= 0.0 || node.in_s <= 0.0) return std::nullopt;
    m.links.push_back({.worker = "node " + std::to_string(node.node),
                       .out = push / node.out_s,
                       .in = pull / node.in_s,
                       .round_trip_s = 0.0});
  }
  Scenario scenario;
  use_measured(m, scenario);
  scenario.mode = m.servers == 0           ? ExchangeMode::kServersColocated
                  : m.servers == m.daemons ? ExchangeMode::kServersDedicated
                                           : ExchangeMode::kServersMixed;
  return scenario;
}

std::uint32_t ranks_of_a_node(const trace::Data& data) {
  std::uint32_t ranks = 1;
  for (const trace::Track& track : data.tracks) {
    if (track.kind == TraceTrack::kTrainer) ranks = std::max<std::uint32_t>(ranks, track.index + 1u);
  }
  return ranks;
}

double milliseconds_a_round(std::uint64_t ns, const trace::Sums& sums) {
  return static_cast<double>(ns) * 1e-6 / static_cast<double>(sums.rounds);
}

Json phases_json(const trace::Phases& phases, const trace::Sums& sums) {
  return {{"compute_ms", milliseconds_a_round(phases.compute_ns, sums)},
          {"reduction_ms", milliseconds_a_round(phases.reduce_ns, sums)},
          {"network_ms", milliseconds_a_round(phases.network_ns, sums)}};
}

Json sums_json(const trace::Sums& sums) {
  Json nodes = Json::array();
  for (const trace::NodeSums& node : sums.nodes) {
    nodes.push_back({{"node", node.node},
                     {"events", phases_json(node.events, sums)},
                     {"status", phases_json(node.meters, sums)},
                     {"out_under_way_ms", node.out_s * 1e3},
                     {"in_under_way_ms", node.in_s * 1e3},
                     {"memory_ms", node.memory_s * 1e3},
                     {"last_share", node.last_share},
                     {"late_ms", node.late_s * 1e3}});
  }
  const auto difference = sums.difference();
  return {{"rounds", sums.rounds},
          {"whole_rounds", sums.whole_rounds},
          {"round_ms", sums.round_s * 1e3},
          {"servers_ms", sums.servers_s * 1e3},
          {"largest_difference_to_status", difference ? Json(*difference) : Json(nullptr)},
          {"nodes", std::move(nodes)}};
}

Json clocks_json(const std::map<trace::Daemon, trace::Clock>& clocks) {
  Json all = Json::array();
  for (const auto& [daemon, clock] : clocks) {
    all.push_back({{"daemon", in_words(daemon)},
                   {"ahead_us", static_cast<double>(clock.ahead_ns) * 1e-3},
                   {"error_us", static_cast<double>(clock.error_ns) * 1e-3},
                   {"known", clock.known}});
  }
  return all;
}

void print_sums(const trace::Sums& sums) {
  Table table({"NODE", "COMPUTE", "STATUS", "REDUCE", "STATUS", "NETWORK", "STATUS"});
  const auto ms = [&](std::uint64_t ns) { return seconds_in_words(milliseconds_a_round(ns, sums) * 1e-3); };
  for (const trace::NodeSums& node : sums.nodes) {
    table.add({std::to_string(node.node), ms(node.events.compute_ns), ms(node.meters.compute_ns),
               ms(node.events.reduce_ns), ms(node.meters.reduce_ns), ms(node.events.network_ns),
               ms(node.meters.network_ns)});
  }
  std::printf("A round, by the trace's events, and by the meters that status shows:\n\n");
  table.print();
  if (const auto difference = sums.difference()) std::printf("\nThey differ by %.2f %% at most.", 100.0 * *difference);
}

// The file, which is whole or not there: it has its name when it is written.
class OutFile {
 public:
  explicit OutFile(std::string path)
      : path_(std::move(path)), partial_(path_ + ".partial"), out_(partial_, std::ios::binary | std::ios::trunc) {}
  ~OutFile() { std::remove(partial_.c_str()); }
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  explicit operator bool() const { return static_cast<bool>(out_); }
  bool write(const std::string& text) {
    out_.write(text.data(), static_cast<std::streamsize>(text.size()));
    out_.close();
    return out_ && std::rename(partial_.c_str(), path_.c_str()) == 0;
  }

 private:
  const std::string path_, partial_;
  std::ofstream out_;
};

Result<int> run(const TraceOptions& options) {
  const auto admin = coordinator_admin(options.cluster);
  if (!admin) return tl::unexpected(admin.error());
  OutFile out(options.out);  // before anything is asked for
  if (!out) return fail(ErrorCode::kInvalidArgument, "cannot write " + options.out + "; give another --out");
  const auto path = order(*admin, options);
  if (!path) return tl::unexpected(path.error());
  const auto status = ask(*admin, "/status", std::nullopt);
  if (!status) return tl::unexpected(status.error());
  auto data = fetch(*admin, *path);
  if (!data) return tl::unexpected(data.error());

  const auto clocks = trace::clocks_of(trace::chains_of(*data));
  trace::align(*data, clocks);
  const trace::Sums sums = trace::sums_of(*data, trace::chains_of(*data));
  std::optional<trace::Verdict> verdict;
  std::string words;
  if (sums.rounds > 0) {
    verdict = trace::verdict_of(sums);
    words = trace::in_words(*verdict, sums,
                            trace::remedies_for(*verdict, sums, exchange_of(nlohmann::json(*status), *data, sums)));
  }
  const Json about = {{"job", data->job},
                      {"first_round", data->first.value},
                      {"last_round", data->last.value},
                      {"lost_events", data->lost},
                      {"short_because", sums.whole_rounds < data->rounds() ? data->short_because : ""},
                      {"clocks", clocks_json(clocks)},
                      {"sums", sums_json(sums)},
                      {"verdict", verdict ? Json(to_text(verdict->binding)) : Json(nullptr)},
                      {"verdict_in_words", words}};
  trace::set_apart(*data);
  const auto chains = trace::chains_of(*data);
  const auto file = trace::file_of(*data, chains, ranks_of_a_node(*data), about);
  if (!out.write(file.json))
    return fail(ErrorCode::kUnavailable, "cannot write " + options.out + ": is the disk full?");

  std::printf("%s: rounds %ju to %ju of job '%s', %s, %ju chunks from ready to answered; open it in ui.perfetto.dev\n",
              options.out.c_str(), std::uintmax_t{data->first.value}, std::uintmax_t{data->last.value},
              data->job.c_str(), bytes_in_words(static_cast<double>(file.json.size())).c_str(),
              std::uintmax_t{file.flows});
  std::printf("Clocks are those of server 0, and at most %s off.\n\n",
              seconds_in_words(static_cast<double>(largest_error(clocks)) * 1e-9).c_str());
  if (sums.rounds > 0) {
    print_sums(sums);
    std::printf("\n\n%s\n", words.c_str());
  }
  if (sums.whole_rounds == data->rounds() && data->lost == 0) return 0;
  std::fprintf(stderr, "tributary trace: %ju of %ju rounds are whole%s%s%s\n", std::uintmax_t{sums.whole_rounds},
               std::uintmax_t{data->rounds()}, data->short_because.empty() ? "" : ": ", data->short_because.c_str(),
               data->lost == 0 ? "" : ("; " + std::to_string(data->lost) + " events had no room").c_str());
  return sums.whole_rounds == 0 ? 1 : 0;
}

}  // namespace

void add_trace(CliCommand app, int& exit_status) {
  const auto options = std::make_shared<TraceOptions>();
  CliCommand command =
      app.add_subcommand("trace", "record rounds to come of a running job, for Perfetto, and say what binds it");
  command->add_option("JOB", options->job, "the job's name")->required();
  command->add_option("--rounds", options->rounds, "how many")->capture_default_str();
  command->add_option("--out", options->out, "the file")->type_name("FILE")->capture_default_str();
  add_cluster_options(command, options->cluster);
  command->callback([options, &exit_status] {
    const auto done = run(*options);
    exit_status = done ? *done : complain("trace", done.error());
  });
}

}  // namespace tributary::cli
