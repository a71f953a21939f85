#include "tests/e2e/soak/soak.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "bench/scratch_folder.h"
#include "common/daemon/http_client.h"
#include "common/math/median.h"
#include "common/system/file_descriptor.h"
#include "session/session.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::e2e {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr std::uint64_t kSamples = 40;          // of a phase
constexpr std::uint64_t kSnapshotRounds = 4;    // from one snapshot to the next
constexpr milliseconds kRoundPause{2};          // the trainer is not what is measured
constexpr int kLooks = 5;                       // for a sample, ...
constexpr milliseconds kLookPause{20};          // ... so far apart: what an attach has open for a moment is no growth
constexpr milliseconds kGivenUp{5};             // an attach of a rank whose job never comes together
constexpr milliseconds kAsk{5'000};             // for a page of a daemon
constexpr std::chrono::seconds kPatience{120};  // without any progress

enum Quantity { kAnonymous, kDescriptors, kThreads, kStore, kQuantities };
constexpr const char* kNames[kQuantities] = {"anonymous_bytes", "descriptors", "threads", "store_bytes"};

struct Bound {
  double once = 0.0, per_unit = 0.0;
};
// Bounded changes that are no growth: arenas that fill, tables that double, RocksDB's write buffer and logs.
constexpr Bound kBounds[kQuantities] = {{512 << 10, 64}, {4, 0}, {2, 0}, {1 << 20, 64}};
// A finished job stays: its record, and its last snapshot with RocksDB's structures for it, whose files are open, 128
// at most (max_open_files in server/store/rocks_options.cc).
constexpr Bound kBoundsOfJobs[kQuantities] = {{512 << 10, 128 << 10}, {4 + 128, 0}, {2, 0}, {1 << 20, 64 << 10}};

struct Sample {
  double unit = 0.0;
  double values[kQuantities] = {};
};

std::uint64_t bytes_below(const std::string& folder) {
  std::uint64_t bytes = 0;
  std::error_code gone;  // the daemon makes and removes files meanwhile
  fs::recursive_directory_iterator entry(folder, gone);
  while (!gone && entry != fs::recursive_directory_iterator()) {
    std::error_code failed;
    const std::uint64_t size = entry->is_regular_file(failed) ? entry->file_size(failed) : 0;
    if (!failed) bytes += size;
    entry.increment(gone);
  }
  return bytes;
}

Sample look_at(Daemon& daemon, const std::string& store, double unit) {
  Sample sample;
  sample.unit = unit;
  const std::string folder = "/proc/" + std::to_string(daemon.process.pid());
  std::ifstream status(folder + "/status");
  for (std::string line; std::getline(status, line);) {
    const auto number = [&](const char* name) { return std::strtod(line.c_str() + std::string(name).size(), nullptr); };
    if (line.starts_with("RssAnon:")) sample.values[kAnonymous] = number("RssAnon:") * 1024.0;
    if (line.starts_with("Threads:")) sample.values[kThreads] = number("Threads:");
  }
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kLookPause);
    std::error_code failed;
    const fs::directory_iterator open(folder + "/fd", failed);
    if (failed) continue;
    const auto descriptors = static_cast<double>(std::distance(begin(open), end(open)));
    sample.values[kDescriptors] = look == 0 ? descriptors : std::min(sample.values[kDescriptors], descriptors);
  }
  if (!store.empty()) sample.values[kStore] = static_cast<double>(bytes_below(store));
  return sample;
}

// The median of the slopes between all pairs: a few samples that are far off do not matter.
double slope(const std::vector<Sample>& samples, Quantity quantity) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t j = i + 1; j < samples.size(); ++j) {
      const double units = samples[j].unit - samples[i].unit;
      if (units > 0.0) slopes.push_back((samples[j].values[quantity] - samples[i].values[quantity]) / units);
    }
  }
  return median(std::move(slopes));
}

// Judges a phase of a daemon; ignores the first third of the samples.
Json judge(std::vector<Sample> samples, const Bound (&bounds)[kQuantities]) {
  samples.erase(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 3));
  Json found = {{"flat", true}};
  for (int q = 0; q < kQuantities; ++q) {
    const double units = samples.back().unit - samples.front().unit;
    const double per_unit = slope(samples, static_cast<Quantity>(q));
    const double allowed = bounds[q].once + bounds[q].per_unit * units;
    found[kNames[q]] = {{"first", samples.front().values[q]},
                        {"last", samples.back().values[q]},
                        {"per_unit", per_unit},
                        {"grew", per_unit * units},
                        {"allowed", allowed}};
    if (per_unit * units > allowed) found["flat"] = false;
  }
  return found;
}

// Connects to "tcp://HOST:PORT", "ipc://PATH" or the path of an attach socket, and hangs up.
void connect_once(const std::string& to) {
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (!to.starts_with(kTcp)) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const bool is_ipc = to.starts_with(kIpc);
    const std::string path = is_ipc ? to.substr(kIpc.size()) : to;
    if (path.size() >= sizeof(address.sun_path)) return;
    std::ranges::copy(path, address.sun_path);
    const FileDescriptor socket(::socket(AF_UNIX, (is_ipc ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0));
    (void)::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    return;
  }
  const std::size_t colon = to.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::strtoul(to.c_str() + colon + 1, nullptr, 10)));
  ::inet_pton(AF_INET, to.substr(kTcp.size(), colon - kTcp.size()).c_str(), &address.sin_addr);
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  (void)::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

class Soak {
 public:
  Soak(const SoakOptions& options, LocalCluster& cluster) : options_(options), cluster_(cluster) {}

  Result<Json> run() {
    if (auto ok = snapshots(); !ok) return tl::unexpected(ok.error());
    const auto each = [this](const char* name, std::uint64_t units, const auto& bounds, auto one) {
      return phase(name, units, bounds, [&](std::uint64_t unit) -> Result<std::uint64_t> {
        if (Status ok = one(unit); !ok) return tl::unexpected(ok.error());
        return 1;
      });
    };
    Status ok = each("views", options_.views, kBounds,
                     [this](std::uint64_t) { return one_view("soak-views", LeaveKind::kStopped); });
    if (ok) {
      ok = each("jobs", options_.jobs, kBoundsOfJobs, [this](std::uint64_t unit) {
        return one_view("soak-job-" + std::to_string(unit), LeaveKind::kFinished);
      });
    }
    if (ok) ok = each("attaches", options_.attaches, kBounds, [this](std::uint64_t) { return attach_in_vain(); });
    if (ok) ok = each("connections", options_.connections, kBounds, [this](std::uint64_t) { return connect_all(); });
    if (!ok) return tl::unexpected(ok.error());
    return Json{{"flat", flat_}, {"rows", rows_}};
  }

 private:
  SessionOptions session_options(const std::string& job) const {
    SessionOptions options;
    options.socket = cluster_.workers()[0].socket;
    options.job.name = job;
    options.job.optimizer = default_optimizer("adamw");
    options.job.optimizer.lr = 1e-3;
    options.job.snapshot = {.every_s = 0, .every_rounds = kSnapshotRounds};
    return options;
  }

  Result<std::unique_ptr<Session>> attach(const std::string& job) const {
    auto session = Session::attach(session_options(job), tensors_);
    if (!session) return session;
    for (std::size_t t = 0; (*session)->fresh() && t < tensors_.size(); ++t) {
      std::ranges::fill((*session)->initial(t), 1.0f);
    }
    if (auto ok = (*session)->start(); !ok) return tl::unexpected(ok.error());
    return session;
  }

  Status round(Session& session) const {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      std::ranges::fill(session.gradient(t), 1e-3f);
      session.ready(t, 1);
    }
    const auto state = session.wait();
    if (!state) return tl::unexpected(state.error());
    if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
    return {};
  }

  // Rounds, until that many snapshots are durable on server 0.
  Status snapshots() {
    if (options_.snapshots == 0) return {};
    auto session = attach("soak-snapshots");
    if (!session) return tl::unexpected(session.error());
    std::uint64_t seen = 0;
    auto progress = Clock::now();
    Status ok = phase("snapshots", options_.snapshots, kBounds, [&](std::uint64_t) -> Result<std::uint64_t> {
      for (std::uint64_t i = 0; i < kSnapshotRounds; ++i) {
        if (Status went = round(**session); !went) return tl::unexpected(went.error());
        std::this_thread::sleep_for(kRoundPause);
      }
      const auto page = http_get(cluster_.servers()[0].admin, "/status", kAsk);
      if (!page) return tl::unexpected(page.error());
      const Json status = Json::parse(*page, nullptr, false);
      const Json durable = status.is_object() && !status.at("jobs").empty()
                               ? status.at("jobs").at(0).at("snapshot").at("durable")
                               : Json();
      const bool another = durable.is_number() && durable.get<std::uint64_t>() != seen;
      if (another) {
        seen = durable.get<std::uint64_t>();
        progress = Clock::now();
      } else if (Clock::now() - progress > kPatience) {
        return fail(ErrorCode::kTimeout, "no snapshot becomes durable");
      }
      return another ? 1 : 0;
    });
    if (!ok) return ok;
    return (*session)->finish(LeaveKind::kFinished);
  }

  Status one_view(const std::string& job, LeaveKind end) const {
    const auto until = Clock::now() + kPatience;
    while (true) {
      auto session = attach(job);
      if (session) {
        if (Status went = round(**session); !went) return went;
        return (*session)->finish(end);
      }
      if (!may_come_back(session.error()) || Clock::now() > until) return tl::unexpected(session.error());
    }
  }

  // A rank whose neighbour never comes.
  Status attach_in_vain() const {
    SessionOptions options = session_options("soak-attaches");
    options.topology = {.rank = 0, .world_size = 2, .local_rank = 0, .local_world_size = 2, .node_rank = 0};
    options.attach_timeout = kGivenUp;
    const auto session = Session::attach(options, tensors_);
    if (session) return fail(ErrorCode::kInternal, "a job of two ranks began with one");
    if (!may_come_back(session.error())) return tl::unexpected(session.error());
    return {};
  }

  // To everything that listens: once in silence, and to the admin port once with a question.
  Status connect_all() {
    for (auto* daemons : {&cluster_.servers(), &cluster_.workers()}) {
      for (Daemon& daemon : *daemons) {
        connect_once("tcp://" + daemon.admin);
        if (!daemon.socket.empty()) connect_once(daemon.socket);
        for (const std::string& lane : daemon.lanes) connect_once(lane);
        if (auto page = http_get(daemon.admin, "/metrics", kAsk); !page) return tl::unexpected(page.error());
      }
    }
    connect_once(cluster_.coordinator());
    return {};
  }

  // Calls one(units so far), which says how many more there are, until there are `units`.
  template <class One>
  Status phase(const char* name, std::uint64_t units, const Bound (&bounds)[kQuantities], One one) {
    if (units == 0) return {};
    const auto began = Clock::now();
    const std::uint64_t every = std::max<std::uint64_t>(units / kSamples, 1);
    std::vector<std::vector<Sample>> samples(cluster_.servers().size() + cluster_.workers().size());
    for (std::uint64_t done = 0, next = 0; done < units;) {
      const auto more = one(done);
      if (!more) return fail(more.error().code, std::string(name) + ": " + more.error().message);
      done += *more;
      if (done < next) continue;
      next = done + every;
      if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
      each_daemon([&](std::size_t i, Daemon& daemon, const std::string& store) {
        samples[i].push_back(look_at(daemon, store, static_cast<double>(done)));
      });
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    each_daemon([&](std::size_t i, Daemon& daemon, const std::string&) {
      Json row = {{"phase", name}, {"units", units}, {"seconds", seconds}, {"daemon", daemon.name}};
      row.update(judge(std::move(samples[i]), bounds));
      flat_ = flat_ && row.at("flat").get<bool>();
      options_.tell(row);
      rows_.push_back(std::move(row));
    });
    return {};
  }

  template <class Each>
  void each_daemon(Each each) {
    std::size_t i = 0;
    for (std::size_t server = 0; server < cluster_.servers().size(); ++server) {
      each(i++, cluster_.servers()[server], cluster_.base_dir() + "/store-" + std::to_string(server));
    }
    for (Daemon& worker : cluster_.workers()) each(i++, worker, std::string());
  }

  const SoakOptions& options_;
  LocalCluster& cluster_;
  const std::vector<TensorSpec> tensors_{{"w", {64, 16}}, {"b", {16}}};
  bool flat_ = true;
  Json rows_ = Json::array();
};

}  // namespace

Result<Json> run_soak(const SoakOptions& options) {
  std::optional<bench::ScratchFolder> folder;
  if (options.base_dir.empty() && folder.emplace().path.empty()) {
    return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
  }
  auto cluster = LocalCluster::start({.servers = options.servers,
                                      .nodes = 1,
                                      .base_dir = folder ? folder->path : options.base_dir,
                                      .log_level = "warn",
                                      .bin_dir = options.bin_dir});
  if (!cluster) return tl::unexpected(cluster.error());
  Result<Json> result = Soak(options, **cluster).run();
  if (!result) (*cluster)->stop_now();
  const auto killed = (*cluster)->stop();
  if (result && !killed.empty()) {
    return fail(ErrorCode::kTimeout, killed.front() + " did not stop in time and was killed");
  }
  return result;
}

}  // namespace tributary::e2e
