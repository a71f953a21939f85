#include "tools/lab/lab_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "common/config/config_toml.h"
#include "common/config/toml_reader.h"

namespace tributary::lab {
namespace {

constexpr double kMaxRateMbit = 100'000.0;
constexpr std::uint32_t kMinBurstKb = 72;  // see default_burst_bytes
constexpr std::uint32_t kMaxBurstKb = 64 << 10;
constexpr std::uint32_t kMaxQueueKb = 1 << 20;
constexpr std::uint32_t kDefaultQueueKb = 4096;
constexpr std::uint32_t kMaxRanks = 64;
constexpr std::uint32_t kMaxRounds = 100'000;
constexpr std::uint64_t kMaxModelBytes = 1ull << 40;
constexpr std::uint32_t kMaxRepetitions = 1000;
constexpr std::size_t kMaxVariants = 64;

// Names become parts of namespaces' and files' names.
// Without dots, which separate them there: no lab's prefix is the beginning of another's.
bool plain_name(const std::string& name, std::size_t longest) {
  return !name.empty() && name.size() <= longest && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '+';
         });
}

class Reader {
 public:
  Reader(TomlReader& reader, std::string folder) : read_(reader), folder_(std::move(folder)) {}

  // Everything that arrays hold becomes sections first, so that overrides and messages find them.
  void all(LabConfig& c, std::size_t groups, std::size_t variants) {
    read_("lab", "name", c.name);
    read_("lab", "congestion", c.congestion);
    read_("network", "rate_mbit", c.rate_mbit);
    read_("network", "burst_kb", c.burst_kb);
    read_("network", "queue_kb", c.queue_kb);
    read_("job", "file", c.job.file);
    read_("job", "set", c.job.overrides);
    read_("job", "store", c.job.store);
    read_("exchange", "model_bytes", c.exchange.model_bytes);
    read_("exchange", "rounds", c.exchange.rounds);
    read_("exchange", "warmup", c.exchange.warmup);
    read_("exchange", "optimizer", c.exchange.optimizer);
    read_("compare", "repetitions", c.compare.repetitions);
    read_("compare", "overlap", c.compare.overlap);
    for (std::size_t i = 0; i < groups; ++i) hosts(c, "hosts[" + std::to_string(i) + "]");
    for (std::size_t i = 0; i < variants; ++i) variant(c, "variants[" + std::to_string(i) + "]");
    c.job.file = resolved(c.job.file);
    check(plain_name(c.name, kMaxLabName), "lab.name",
          "must be 1 to " + std::to_string(kMaxLabName) + " letters, digits, '_', '-' or '+'");
    check(plain_name(c.congestion, 15) || c.congestion.empty(), "lab.congestion",
          "must be the name of a congestion control, as \"reno\", or \"\" for this machine's");
    rate("network.rate_mbit", c.rate_mbit);
    check(c.burst_kb == 0 || (c.burst_kb >= kMinBurstKb && c.burst_kb <= kMaxBurstKb), "network.burst_kb",
          "must be from " + std::to_string(kMinBurstKb) + " (offloaded packets must fit) to " +
              std::to_string(kMaxBurstKb) + ", or 0 for the default");
    check(c.queue_kb == 0 || (c.queue_kb >= 2 * kMinBurstKb && c.queue_kb <= kMaxQueueKb), "network.queue_kb",
          "must be from " + std::to_string(2 * kMinBurstKb) + " to " + std::to_string(kMaxQueueKb) +
              ", or 0 for the default");
    check(c.exchange.model_bytes >= 4096 && c.exchange.model_bytes <= kMaxModelBytes, "exchange.model_bytes",
          "must be at least 4096");
    check(c.exchange.rounds >= 1 && c.exchange.rounds <= kMaxRounds, "exchange.rounds",
          "must be from 1 to " + std::to_string(kMaxRounds));
    check(c.exchange.warmup <= kMaxRounds, "exchange.warmup", "must be at most " + std::to_string(kMaxRounds));
    check(c.compare.repetitions >= 1 && c.compare.repetitions <= kMaxRepetitions, "compare.repetitions",
          "must be from 1 to " + std::to_string(kMaxRepetitions));
    check(c.compare.overlap >= 0.0 && c.compare.overlap <= 1.0, "compare.overlap", "must be from 0 to 1");
    check(variants <= kMaxVariants, "variants", "at most " + std::to_string(kMaxVariants) + " are compared");
    check(groups > 0, "hosts", "a lab needs hosts: add [[hosts]] with name, count and runs");
    check(groups == 0 || c.workers() > 0, "hosts[0].runs", "at least one host must run a worker");
  }

  std::vector<Fault> faults;

 private:
  void check(bool ok, const std::string& key, std::string message) {
    if (!ok) faults.push_back({key, "", std::move(message)});
  }

  void rate(const std::string& key, double mbit) {
    check(std::isfinite(mbit) && mbit >= 1.0 && mbit <= kMaxRateMbit, key, "must be from 1 to 100000 Mbit/s");
  }

  void hosts(LabConfig& c, const std::string& section) {
    std::string runs;
    std::uint32_t count = 1;
    double both = c.rate_mbit;
    LabHost host;
    read_(section, "name", host.name);
    read_(section, "count", count);
    read_(section, "runs", runs);
    read_(section, "ranks", host.ranks);
    read_(section, "rate_mbit", both);
    host.up_mbit = host.down_mbit = both;
    read_(section, "up_mbit", host.up_mbit);
    read_(section, "down_mbit", host.down_mbit);
    read_(section, "bandwidth", host.bandwidth);
    check(plain_name(host.name, kMaxHostName), section + ".name",
          "must be 1 to " + std::to_string(kMaxHostName) + " letters, digits, '_', '-' or '+'");
    check(count >= 1 && count <= kMaxHosts, section + ".count", "must be from 1 to " + std::to_string(kMaxHosts));
    check(runs == "worker" || runs == "server" || runs == "both", section + ".runs",
          "must be \"worker\", \"server\" or \"both\"");
    check(host.ranks >= 1 && host.ranks <= kMaxRanks, section + ".ranks",
          "must be from 1 to " + std::to_string(kMaxRanks));
    if (both != c.rate_mbit) rate(section + ".rate_mbit", both);
    if (host.up_mbit != both) rate(section + ".up_mbit", host.up_mbit);
    if (host.down_mbit != both) rate(section + ".down_mbit", host.down_mbit);
    check(std::isfinite(host.bandwidth) && host.bandwidth >= 0.0, section + ".bandwidth",
          "must be a weight relative to the other hosts, or 0: it then follows from the rates");
    host.worker = runs != "server";
    host.server = runs != "worker";
    // A push uses the way up of a worker and the way down of a server, a pull the others: the slower way counts.
    if (host.bandwidth == 0.0) host.bandwidth = std::min(host.up_mbit, host.down_mbit) / c.rate_mbit;
    const std::string name = host.name;
    for (std::uint32_t i = 0; i < std::min(count, kMaxHosts); ++i) {
      host.name = count == 1 ? name : name + std::to_string(i);
      check(names_.insert(host.name).second, section + ".name",
            "two hosts are named " + host.name + "; every host needs its own name");
      c.hosts.push_back(host);
    }
    check(c.hosts.size() <= kMaxHosts, section + ".count",
          "a lab has at most " + std::to_string(kMaxHosts) + " hosts, these are " + std::to_string(c.hosts.size()));
    same_ranks(c, section);
  }

  // The trainers' topology is a rectangle.
  void same_ranks(const LabConfig& c, const std::string& section) {
    for (const LabHost& h : c.hosts) {
      if (!h.worker || !c.hosts.back().worker || h.ranks == c.hosts.back().ranks) continue;
      check(false, section + ".ranks",
            "must be the same on all hosts with a worker; " + h.name + " has " + std::to_string(h.ranks));
      return;
    }
  }

  std::string resolved(const std::string& file) const {
    return file.empty() ? file : (std::filesystem::path(folder_) / file).lexically_normal().string();
  }

  void variant(LabConfig& c, const std::string& section) {
    LabVariant v;
    read_(section, "name", v.name);
    read_(section, "file", v.file);
    read_(section, "set", v.overrides);
    read_(section, "baseline", v.baseline);
    v.file = resolved(v.file);
    check(v.file.empty() || v.baseline.empty(), section + ".file", "a baseline trains no job: remove file or baseline");
    check(!v.name.empty() && v.name.size() <= 64, section + ".name", "must be 1 to 64 characters");
    check(v.baseline.empty() || v.baseline == "gloo", section + ".baseline", "must be \"gloo\", or be left out");
    check(variant_names_.insert(v.name).second, section + ".name", "another variant has this name");
    c.variants.push_back(std::move(v));
  }

  TomlReader& read_;
  std::string folder_;
  std::set<std::string> names_, variant_names_;
};

}  // namespace

std::uint32_t LabConfig::workers() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(hosts, [](const LabHost& h) { return h.worker; }));
}

std::uint32_t LabConfig::servers() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(hosts, [](const LabHost& h) { return h.server; }));
}

std::uint32_t LabConfig::world_size() const {
  std::uint32_t ranks = 0;
  for (const LabHost& h : hosts) ranks += h.worker ? h.ranks : 0;
  return ranks;
}

bool is_lab_name(const std::string& name) {
  return plain_name(name, kMaxLabName);
}

std::uint32_t default_burst_bytes(double rate_mbit) {
  const double millisecond = rate_mbit * 1e6 / 8.0 / 1000.0;
  return std::max<std::uint32_t>(kMinBurstKb << 10, static_cast<std::uint32_t>(std::lround(millisecond)));
}

std::uint32_t queue_bytes(const LabConfig& config) {
  return (config.queue_kb == 0 ? kDefaultQueueKb : config.queue_kb) << 10;
}

Result<LabConfig> parse_lab_config(std::string_view text, std::string_view source_name, const std::string& folder) {
  Result<TomlReader> parsed = TomlReader::parse(text, source_name);
  if (!parsed) return tl::unexpected(parsed.error());
  const std::size_t groups = parsed->tables("hosts");
  const std::size_t variants = parsed->tables("variants");
  LabConfig config;
  Reader reader(*parsed, folder);
  reader.all(config, groups, variants);
  parsed->check_unknown();
  for (const Fault& fault : reader.faults) parsed->complain(fault);
  if (Status status = parsed->finish(); !status) return tl::unexpected(status.error());
  return config;
}

Result<LabConfig> load_lab_config(const std::string& path) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  return read_config_file(path).and_then([&](const std::string& text) { return parse_lab_config(text, path, folder); });
}

}  // namespace tributary::lab
