#include "tools/lab/hosted_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "common/base/clock.h"
#include "common/math/median.h"
#include "tools/cluster/trainer_result.h"
#include "tools/lab/gate.h"

namespace tributary::lab {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds kReapPoll{5};
constexpr std::chrono::minutes kPatience{10};  // with ranks that print nothing

std::uint64_t printed_bytes(const std::vector<Trainer>& ranks) {
  std::uint64_t bytes = 0;
  for (const Trainer& rank : ranks) bytes += file_bytes(rank.log_file);
  return bytes;
}

Status wait_until(const std::function<bool()>& condition, const char* what, const std::vector<Trainer>& ranks,
                  const std::function<Status()>& healthy) {
  auto until = Clock::now() + kPatience;
  std::uint64_t printed = printed_bytes(ranks);
  while (!condition()) {
    if (auto ok = healthy(); !ok) return ok;
    if (const std::uint64_t now = printed_bytes(ranks); now != printed) {
      printed = now;
      until = Clock::now() + kPatience;
    }
    if (Clock::now() >= until) return fail(ErrorCode::kTimeout, std::string("the ranks do not get to ") + what);
    std::this_thread::sleep_for(kReapPoll);
  }
  return {};
}

}  // namespace

double busy_seconds(std::string_view proc_stat, long ticks_per_second) {
  // "cpu  user nice system idle iowait irq softirq steal ..."
  std::istringstream fields{std::string(proc_stat.substr(0, proc_stat.find('\n')))};
  std::string name;
  fields >> name;
  double busy = 0.0, ticks = 0.0;
  constexpr int kIdle = 3, kWaiting = 4, kColumns = 7;
  for (int i = 0; i < kColumns && fields >> ticks; ++i) {
    if (i != kIdle && i != kWaiting) busy += ticks;
  }
  return name == "cpu" ? busy / static_cast<double>(ticks_per_second) : 0.0;
}

Result<Reading> read_now(const Lab& lab, const std::vector<Watched>& watched) {
  Reading reading;
  auto hosts = read_counters(lab.plan());
  if (!hosts) return tl::unexpected(hosts.error());
  reading.hosts = std::move(*hosts);
  for (const Watched& w : watched) reading.processes.push_back(w.process->usage());
  std::ifstream stat("/proc/stat");
  std::string first;
  std::getline(stat, first);
  reading.busy_seconds = busy_seconds(first, ::sysconf(_SC_CLK_TCK));
  reading.at_ns = steady_ns();
  return reading;
}

Json usage_between(const Lab& lab, const std::vector<Watched>& watched, const Reading& before, const Reading& after) {
  Json hosts = Json::array(), cpu = Json::array();
  std::uint64_t drops = 0, retransmits = 0;
  double cpu_seconds = 0.0;
  for (std::size_t i = 0; i < lab.plan().hosts.size(); ++i) {
    const HostCounters d = difference(after.hosts.at(i), before.hosts.at(i));
    const LabHost& host = lab.config().hosts[i];
    hosts.push_back({{"name", host.name},
                     {"address", lab.plan().hosts[i].address},
                     {"up_mbit", host.up_mbit},
                     {"down_mbit", host.down_mbit},
                     {"wire_bytes_sent", d.up.bytes},
                     {"wire_bytes_received", d.down.bytes},
                     {"interface_bytes_sent", d.interface.sent_bytes},
                     {"interface_bytes_received", d.interface.received_bytes},
                     {"drops_up", d.up.drops},
                     {"drops_down", d.down.drops},
                     {"retransmits", d.tcp.retransmitted},
                     {"tcp_timeouts", d.tcp.timeouts}});
    drops += d.up.drops + d.down.drops;
    retransmits += d.tcp.retransmitted;
  }
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const double seconds = std::max(after.processes.at(i).cpu_seconds - before.processes.at(i).cpu_seconds, 0.0);
    cpu.push_back({{"name", watched[i].name},
                   {"seconds", seconds},
                   {"resident_peak_bytes", after.processes[i].resident_peak_bytes}});
    cpu_seconds += seconds;
  }
  const double elapsed = 1e-9 * static_cast<double>(after.at_ns - before.at_ns);
  const auto processors = static_cast<double>(std::max(std::thread::hardware_concurrency(), 1u));
  return {{"hosts", std::move(hosts)},
          {"drops", drops},
          {"retransmits", retransmits},
          {"cpu", std::move(cpu)},
          {"cpu_seconds", cpu_seconds},
          {"elapsed_seconds", elapsed},
          {"machine_busy", (after.busy_seconds - before.busy_seconds) / std::max(elapsed, 1e-9) / processors}};
}

Result<LoneRanks> LoneRanks::start(const Lab& lab, const std::string& log_dir, const std::string& name,
                                   std::uint32_t per_host, const std::function<Program(const Place&)>& program) {
  LoneRanks all;
  const auto ranks_of = [&](const LabHost& host) { return host.worker ? std::min(host.ranks, per_host) : 0u; };
  Place place{.ranks = 0};
  for (const LabHost& host : lab.config().hosts) place.ranks += ranks_of(host);
  for (std::size_t i = 0; i < lab.config().hosts.size(); ++i) {
    const LabHost& host = lab.config().hosts[i];
    if (!host.worker) continue;
    place.address = lab.plan().hosts[i].address;
    if (place.rank == 0) place.first_address = place.address;
    place.local_ranks = ranks_of(host);
    for (place.local_rank = 0; place.local_rank < place.local_ranks; ++place.local_rank, ++place.rank) {
      Trainer rank;
      rank.rank = place.rank;
      rank.log_file = log_dir + "/" + name + "-" + std::to_string(place.rank) + ".log";
      rank.network_namespace = namespace_path(lab.plan().hosts[i].network_namespace);
      Program one = program(place);
      rank.argv = std::move(one.argv);
      rank.environment = std::move(one.environment);
      auto process = Process::spawn({.argv = rank.argv,
                                     .log_file = rank.log_file,
                                     .environment = rank.environment,
                                     .network_namespace = rank.network_namespace});
      if (!process) return tl::unexpected(process.error());
      rank.process = std::move(*process);
      all.ranks_.push_back(std::move(rank));
    }
    ++place.host;
  }
  return all;
}

std::vector<Watched> LoneRanks::watched() {
  std::vector<Watched> processes;
  for (Trainer& rank : ranks_) processes.push_back({"rank " + std::to_string(rank.rank), &rank.process});
  return processes;
}

Status LoneRanks::healthy() {
  for (Trainer& rank : ranks_) {
    const auto status = rank.process.poll();
    if (!status || status->ok()) continue;
    return fail(ErrorCode::kUnavailable, how_ended(rank, *status));
  }
  return {};
}

Result<MeasuredRanks> measure_ranks(const Lab& lab, std::vector<Trainer>& ranks, const std::vector<Watched>& watched,
                                    const std::string& gate, const std::function<Status()>& healthy) {
  MeasuredRanks measured;
  const auto pass = [&](const char* name, Reading& reading) -> Status {
    const auto all_there = [&] {
      return std::ranges::all_of(ranks, [&](const Trainer& t) { return at_gate(gate, name, t.rank); });
    };
    if (auto ok = wait_until(all_there, name, ranks, healthy); !ok) return ok;
    auto now = read_now(lab, watched);
    if (!now) return tl::unexpected(now.error());
    reading = std::move(*now);
    return open_gate(gate, name);
  };
  if (auto ok = pass(kGateBefore, measured.before); !ok) return tl::unexpected(ok.error());
  if (auto ok = pass(kGateAfter, measured.after); !ok) return tl::unexpected(ok.error());
  const auto all_ended = [&] { return std::ranges::none_of(ranks, [](Trainer& t) { return t.process.running(); }); };
  if (auto ok = wait_until(all_ended, "their end", ranks, healthy); !ok) return tl::unexpected(ok.error());
  if (auto ok = healthy(); !ok) return tl::unexpected(ok.error());  // how they ended
  for (const Trainer& rank : ranks) {
    auto result = parsed_result(rank);
    if (!result) return tl::unexpected(result.error());
    measured.results.emplace_back(std::move(*result));
  }
  return measured;
}

Result<Json> round_times(const std::vector<nlohmann::json>& results) {
  try {
    std::vector<double> slowest;
    std::uint64_t first = 0, last = 0;
    for (const auto& rank : results) {
      const auto begin = rank.at("begin_ns").get<std::vector<std::uint64_t>>();
      const auto end = rank.at("end_ns").get<std::vector<std::uint64_t>>();
      if (begin.empty() || begin.size() != end.size() || (!slowest.empty() && begin.size() != slowest.size()))
        return fail(ErrorCode::kMalformed, "the ranks measured different numbers of rounds");
      slowest.resize(begin.size(), 0.0);
      for (std::size_t i = 0; i < begin.size(); ++i)
        slowest[i] = std::max(slowest[i], 1e-9 * static_cast<double>(end[i] - begin[i]));
      first = first == 0 ? begin.front() : std::min(first, begin.front());
      last = std::max(last, end.back());
      if (rank.at("digest") != results.front().at("digest")) {
        return fail(ErrorCode::kInternal, "the ranks ended with different values: digest " +
                                              results.front().at("digest").get<std::string>() + " and " +
                                              rank.at("digest").get<std::string>());
      }
    }
    const auto rounds = static_cast<double>(slowest.size());
    return Json{{"model_bytes", results.front().at("model_bytes")},
                {"rounds", slowest.size()},
                {"round_seconds", median(slowest)},
                {"round_seconds_all", slowest},
                {"period_seconds", 1e-9 * static_cast<double>(last - first) / rounds},
                {"digest", results.front().at("digest")}};
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kMalformed, std::string("a rank's result is not as expected: ") + e.what());
  }
}

}  // namespace tributary::lab
