// Fixtures of the end-to-end tests: a small data set on disk, job files, and clusters of real daemons.
#pragma once

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/daemon/http_client.h"
#include "common/system/file_descriptor.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::e2e {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::TempDir;

inline constexpr seconds kPatience{100};  // for anything that takes a second on an idle machine

inline bool eventually(const std::function<bool()>& condition, milliseconds patience = kPatience) {
  return testing::eventually(condition, patience);
}

// Returns the address of an endpoint on this machine.
inline sockaddr_in address_of(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Opens a plain TCP connection to such an endpoint; none if it is refused.
inline FileDescriptor connect_to(const std::string& endpoint) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(endpoint);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return FileDescriptor();
  return fd;
}

// IDX files as Fashion-MNIST has them, but small: 512 and 128 images of 12 x 12 pixels whose class can be seen.
inline void write_data_set(const std::string& folder) {
  std::filesystem::create_directories(folder);
  const auto number = [](std::ofstream& out, std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) out.put(static_cast<char>(value >> shift));
  };
  std::uint32_t random = 12345;
  for (const auto& [name, count] : {std::pair{std::string("train"), 512u}, std::pair{std::string("t10k"), 128u}}) {
    std::ofstream images(folder + "/" + name + "-images-idx3-ubyte", std::ios::binary);
    std::ofstream labels(folder + "/" + name + "-labels-idx1-ubyte", std::ios::binary);
    number(images, 0x803), number(images, count), number(images, 12), number(images, 12);
    number(labels, 0x801), number(labels, count);
    for (std::uint32_t i = 0; i < count; ++i) {
      random = random * 1664525u + 1013904223u;
      const std::uint32_t label = (random >> 16) % 10;
      labels.put(static_cast<char>(label));
      for (std::uint32_t pixel = 0; pixel < 144; ++pixel) {
        random = random * 1664525u + 1013904223u;
        const bool bright = pixel / 14 == label;
        images.put(static_cast<char>(bright ? 255 : (random >> 24) % 160));
      }
    }
  }
}

// Also of strings in JSON.
inline bool contains(const std::string& text, const std::string& part) {
  return testing::contains(text, part);
}

inline std::string contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// All that a daemon has written to its log.
inline std::string log_of(const Daemon& daemon) {
  return contents(daemon.log_file);
}

struct Job {
  std::string name = "e2e";
  std::string mode = "sync";
  std::string optimizer = "name = \"adamw\"\nlr = 0.003";
  std::uint64_t chunk_bytes = 0;
  std::uint64_t rounds = 40;
  std::uint64_t snapshot_every_rounds = 0;
  std::string extra;  // TOML
};

inline const char* kAdamW = "name = \"adamw\"\nlr = 0.003";
inline const char* kOuterMomentum = "name = \"sgd\"\nlr = 0.7\nmomentum = 0.9\nnesterov = true";
inline const char* kMomentum = "name = \"sgd\"\nlr = 0.05\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.0005";

// Writes the job's TOML and, once, the data set next to it; returns the file's path.
inline std::string write_job(const TempDir& dir, const Job& job) {
  const std::string data = dir / "data";
  if (!std::filesystem::exists(data)) write_data_set(data);
  const std::string path = dir / (job.name + ".toml");
  std::ofstream out(path);
  out << "[job]\nname = \"" << job.name << "\"\nmode = \"" << job.mode << "\"\nchunk_bytes = " << job.chunk_bytes
      << "\n\n[optimizer]\n"
      << job.optimizer << "\n\n[snapshot]\nevery_s = 0\nevery_rounds = " << job.snapshot_every_rounds
      << "\n\n[train]\ndata_dir = \"" << data << "\"\nhidden = [64, 48]\nepochs = 100000\nglobal_batch = 64\nseed = 7\n"
      << "max_rounds = " << job.rounds << "\neval_every_epochs = 100000\n"
      << job.extra;
  out.close();
  REQUIRE(out.good());
  return path;
}

inline std::string bin(const std::string& program) {
  return std::string(TRIBUTARY_BIN_DIR) + "/" + program;
}

using Environment = std::vector<std::pair<std::string, std::string>>;

// The end of a program, and its standard output and error together.
struct Outcome {
  int status = -1;
  std::string text;
  nlohmann::json json() const { return nlohmann::json::parse(text.substr(0, text.find('\n')), nullptr, false); }
};

inline Outcome run(const std::vector<std::string>& argv, const Environment& environment = {},
                   milliseconds patience = kPatience) {
  const TempDir dir;
  const std::string log = dir / "log";
  auto process = required(Process::spawn({.argv = argv, .log_file = log, .environment = environment}));
  const auto status = process.wait(patience);
  const std::string text = contents(log);
  INFO(text);
  REQUIRE(status);
  CHECK(status->signal == 0);
  return {status->code, text};
}

// Starts a daemon that must exit by itself with an error. Returns the last lines of its log.
inline std::string refusal_of(const std::string& daemon, const std::string& config, const std::string& log) {
  auto process = required(Process::spawn({.argv = {bin(daemon), "--config", config}, .log_file = log}));
  const auto status = required(process.wait(kPatience));
  CHECK_FALSE(status.ok());
  return last_lines(log, 15);
}

// Returns the report of one process that trains the job without any daemon, on the CPU, as all trainers here: a GPU has
// other bits. nodes: matters to encodings that round a node's sum.
inline nlohmann::json standalone_result(const TempDir& dir, const std::string& job_file, int ranks, int nodes = 1) {
  const std::string log = dir / "standalone.log";
  std::filesystem::remove(log);
  auto process =
      required(Process::spawn({.argv = {bin("tributary-train"), "--job", job_file, "--standalone", "--ranks",
                                        std::to_string(ranks), "--nodes", std::to_string(nodes), "--json", "--quiet"},
                               .log_file = log}));
  const auto status = required(process.wait(kPatience));
  INFO(last_lines(log, 15));
  REQUIRE(status.ok());
  Trainer trainer;
  trainer.log_file = log;
  const std::string result = trainer_result(trainer);
  REQUIRE_FALSE(result.empty());
  return nlohmann::json::parse(result);
}

inline std::string standalone_digest(const TempDir& dir, const std::string& job_file, int ranks, int nodes = 1) {
  return standalone_result(dir, job_file, ranks, nodes).at("digest");
}

inline ClusterOptions options_in(const std::string& base_dir) {
  ClusterOptions options{.base_dir = base_dir, .heartbeat_ms = 100, .bin_dir = TRIBUTARY_BIN_DIR};
  options.peer_timeout_ms = 4000;  // longer than a busy machine keeps a daemon from its heartbeats
  return options;
}

// Copies of a job's snapshots: by default there are none where all servers are on one machine.
inline const std::vector<std::string> kTwoCopies = {"snapshot.copies=2"};

// A way to spread a job over processes.
struct Spread {
  std::uint32_t nodes = 2, ranks_per_node = 2;
  std::uint16_t servers = 2, lanes = ClusterOptions().lanes;
  std::uint64_t chunk_bytes = 0;
  Transport transport = ClusterOptions().transport;
};

inline ClusterOptions spread(const std::string& base_dir, const Spread& s) {
  ClusterOptions options = options_in(base_dir);
  options.servers = s.servers;
  options.lanes = s.lanes;
  options.nodes = s.nodes;
  options.ranks_per_node = s.ranks_per_node;
  options.transport = s.transport;
  return options;
}

inline ClusterOptions two_by_two(const TempDir& dir) {
  return spread(dir / "run", {});
}

inline ClusterOptions afresh(ClusterOptions options) {
  options.fresh = true;
  return options;
}

inline std::unique_ptr<LocalCluster> start(const ClusterOptions& options) {
  return required(LocalCluster::start(options));
}

inline void restart(LocalCluster& cluster, Daemon& daemon) {
  required(cluster.restart(daemon));
}

inline void restart_trainer(LocalCluster& cluster, std::uint32_t rank) {
  required(cluster.restart_trainer(rank));
}

// A server's process and disk.
inline void lose_for_good(LocalCluster& cluster, std::size_t server) {
  cluster.servers()[server].process.terminate(milliseconds(0));
  std::filesystem::remove_all(cluster.store_dir(server));
}

// File that the trainers' last round waits for.
inline std::string last_round_file(const LocalCluster& cluster) {
  return cluster.options().base_dir + ".last-round";
}

// Starts them on the job. The last round waits for let_end(), and the rounds of the second half are slow until then: a
// test in the middle of the job stays in the middle, and snapshots are in time, however fast the rounds are.
inline void start_trainers(LocalCluster& cluster, const std::string& job_file,
                           const std::vector<std::string>& overrides = {}) {
  std::filesystem::remove(last_round_file(cluster));
  required(cluster.start_trainers(
      {.command = cluster.train_command(job_file, overrides,
                                        {"--json", "--quiet", "--last-round-after", last_round_file(cluster)}),
       .progress_socket = {}}));
}

inline std::unique_ptr<LocalCluster> start(const ClusterOptions& options, const std::string& job_file,
                                           const std::vector<std::string>& overrides = {}) {
  auto cluster = start(options);
  start_trainers(*cluster, job_file, overrides);
  return cluster;
}

// Returns the part of the coordinator's status that changes while jobs train; empty if the coordinator does not answer.
inline std::string progress_of(LocalCluster& cluster) {
  const auto body = http_get(cluster.coordinator_daemon().admin, "/status", milliseconds(2000));
  const auto status = body ? nlohmann::json::parse(*body, nullptr, false) : nlohmann::json();
  if (!status.is_object() || !status.contains("coordinator")) return {};
  std::string all;
  for (const auto& job : status.at("coordinator").value("jobs", nlohmann::json::array())) {
    for (const char* field : {"view", "min_version", "max_version", "committed"}) {
      all += job.value(field, nlohmann::json()).dump() + " ";
    }
  }
  return all;
}

inline void let_end(const LocalCluster& cluster) {
  REQUIRE(std::ofstream(last_round_file(cluster)).good());
}

// Lets the trainers end, and waits until every one has; fails the test if a process fails first, or nothing moves for `patience`. The
// whole job may take any time.
inline void finish_training(LocalCluster& cluster, milliseconds patience = kPatience) {
  let_end(cluster);
  std::string before;
  for (bool moved = true; moved;) {
    const bool over = eventually(
        [&] {
          const auto failure = cluster.failure();
          REQUIRE_MESSAGE(!failure, *failure);
          return !cluster.trainers_running();
        },
        patience);
    if (over) return;
    std::string now = progress_of(cluster);
    moved = now != before;
    before = std::move(now);
  }
  for (const Daemon& d : cluster.servers()) MESSAGE(d.name << ":\n" << last_lines(d.log_file, 15, d.log_from));
  for (const Daemon& d : cluster.workers()) MESSAGE(d.name << ":\n" << last_lines(d.log_file, 15, d.log_from));
  for (const Trainer& t : cluster.trainers())
    MESSAGE("rank " << t.rank << ":\n" << last_lines(t.log_file, 15, t.log_from));
  FAIL("the trainers do not end");
}

// Returns the ranks' final objects. Checks that all ended with the same parameters.
inline std::vector<nlohmann::json> results(LocalCluster& cluster) {
  std::vector<nlohmann::json> all;
  for (const Trainer& trainer : cluster.trainers()) {
    const std::string line = trainer_result(trainer);
    INFO("rank " << trainer.rank << ":\n" << last_lines(trainer.log_file, 15, trainer.log_from));
    REQUIRE_FALSE(line.empty());
    all.push_back(nlohmann::json::parse(line));
    CHECK(all.back().at("digest") == all.front().at("digest"));
    CHECK(all.back().at("rounds") == all.front().at("rounds"));
  }
  return all;
}

inline std::vector<nlohmann::json> finished(LocalCluster& cluster) {
  finish_training(cluster);
  return results(cluster);
}

// Returns the answer of the daemon's admin port.
inline std::string answer_of(const Daemon& daemon, const std::string& path) {
  return required(http_get(daemon.admin, path, milliseconds(5000)));
}

inline nlohmann::json status_of(const Daemon& daemon) {
  return nlohmann::json::parse(answer_of(daemon, "/status"));
}

// Counts the payload bytes, both ways, that the servers' lanes have seen cross sockets, or shared memory.
inline std::uint64_t payload_bytes(LocalCluster& cluster, Transport way) {
  std::uint64_t bytes = 0;
  for (const Daemon& server : cluster.servers()) {
    const nlohmann::json status = status_of(server);
    for (const auto& lane : status.at("lanes")) {
      bytes += lane.at(way == Transport::kShm ? "shared_payload_bytes" : "socket_payload_bytes").get<std::uint64_t>();
    }
  }
  return bytes;
}

// Checks that all payloads took the cluster's transport, and none the other. (Jobs without servers have neither.)
inline void check_transport(LocalCluster& cluster) {
  if (cluster.servers().empty()) return;
  const bool shares = cluster.options().transport == Transport::kShm;
  CHECK(payload_bytes(cluster, shares ? Transport::kShm : Transport::kTcp) > 0);
  CHECK(payload_bytes(cluster, shares ? Transport::kTcp : Transport::kShm) == 0);
}

// Trains a job from its beginning to its end on a cluster of its own.
inline std::vector<nlohmann::json> trained(const ClusterOptions& options, const std::string& job_file,
                                           const std::vector<std::string>& overrides = {}) {
  const auto cluster = start(afresh(options), job_file, overrides);
  finish_training(*cluster);
  const bool on_servers =
      std::ranges::none_of(overrides, [](const std::string& one) { return one == "job.mode=\"allreduce\""; });
  if (on_servers) check_transport(*cluster);
  CHECK(cluster->stop().empty());
  return results(*cluster);
}

// Kills a daemon in the middle of a job and restarts it: the trainers attach again and end in the reference's bits.
inline void survive_kill_of(LocalCluster& cluster, Daemon& daemon, const std::string& reference) {
  daemon.process.terminate(milliseconds(0));
  restart(cluster, daemon);
  finish_training(cluster);
  const auto all = results(cluster);
  CHECK(all[0].at("restarts").get<int>() >= 1);
  CHECK(all[0].at("digest") == reference);
  check_transport(cluster);
  CHECK(cluster.stop().empty());
}

// Returns a field of the only job, as the coordinator's status has it; 0 while there is no job.
inline std::uint64_t job_number(LocalCluster& cluster, const char* field) {
  const nlohmann::json jobs = status_of(cluster.coordinator_daemon()).at("coordinator").at("jobs");
  if (jobs.empty() || !jobs.at(0).at(field).is_number()) return 0;
  return jobs.at(0).at(field);
}

// Does the only job train, under the coordinator that there is now?
inline bool trains(LocalCluster& cluster) {
  const nlohmann::json jobs = status_of(cluster.coordinator_daemon()).at("coordinator").at("jobs");
  return !jobs.empty() && jobs.at(0).at("phase") == "running";
}

// Waits until the field of the only job is at least `value`; fails the test if a process fails first.
inline void wait_for(LocalCluster& cluster, const char* field, std::uint64_t value) {
  REQUIRE(eventually([&] {
    const auto failure = cluster.failure();
    REQUIRE_MESSAGE(!failure, *failure);
    return job_number(cluster, field) >= value;
  }));
}

// Stops every daemon by SIGTERM, and waits until it has ended, and the trainers.
inline void stop_daemons(LocalCluster& cluster) {
  for (auto* daemons : {&cluster.servers(), &cluster.workers()}) {
    for (Daemon& d : *daemons) d.process.send_signal(SIGTERM);
  }
  for (auto* daemons : {&cluster.servers(), &cluster.workers()}) {
    for (Daemon& d : *daemons) {
      const auto status = d.process.wait(kPatience);
      INFO(d.name << ":\n" << last_lines(d.log_file, 15, d.log_from));
      CHECK(required(status).describe() == "exited with status 0");
    }
  }
  REQUIRE(cluster.wait_for_trainers(kPatience));
}

// Stops all daemons in the middle of a job of `rounds` and resumes it: it ends in the reference's bits. `meanwhile` is
// called while it trains.
inline void stop_and_resume(
    const ClusterOptions& options, const std::string& job_file, std::uint64_t rounds, const std::string& reference,
    const std::vector<std::string>& overrides = {}, const std::function<void()>& meanwhile = [] {}) {
  std::uint64_t stopped_at = 0;
  {
    const auto cluster = start(options, job_file, overrides);
    wait_for(*cluster, "max_version", 100);
    meanwhile();
    stop_daemons(*cluster);
    const auto all = results(*cluster);
    CHECK(all[0].at("stopped") == true);
    stopped_at = all[0].at("rounds");
    CHECK(stopped_at >= 100);
    CHECK(stopped_at < rounds);
    CHECK(cluster->stop().empty());
  }
  const auto cluster = start(options, job_file, overrides);
  const auto all = finished(*cluster);
  CHECK(cluster->stop().empty());
  CHECK(all[0].at("resumed_from") == stopped_at);
  CHECK(all[0].at("rounds") == rounds);
  CHECK(all[0].at("digest") == reference);
}

}  // namespace tributary::e2e
