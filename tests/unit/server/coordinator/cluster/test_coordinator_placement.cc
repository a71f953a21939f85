// Where the coordinator puts the chunks of a job, by the hosts that its daemons are on
// (server/coordinator/cluster/job_placement.h).
#include <doctest/doctest.h>

#include <cmath>

#include "common/math/encoding.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_placement_test {

using namespace testing;

namespace {

constexpr std::uint64_t kChunk = 16'384;  // elements
constexpr std::uint64_t kChunks = 240;

struct Place {
  std::string host;
  double bandwidth = 1.0;
};
using Places = std::vector<Place>;

// `count` places on hosts of their own: prefix0, prefix1, ...
Places places(const std::string& prefix, std::size_t count, double bandwidth = 1.0) {
  Places result;
  for (std::size_t i = 0; i < count; ++i) result.push_back({prefix + std::to_string(i), bandwidth});
  return result;
}

Places operator+(Places a, const Places& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

JoinOptions model_of(EncodingSpec push = EncodingId::kFp32, EncodingSpec pull = EncodingId::kFp32) {
  JoinOptions options;
  options.tensors = {{"w", {kChunk * kChunks}}};
  options.config.chunk_bytes = kChunk * sizeof(float);
  options.config.push = push;
  options.config.pull = pull;
  return options;
}

void arrive(Cluster& cluster, const Places& servers, const Places& workers, const std::vector<StoredJob>& stored = {}) {
  for (std::uint16_t i = 0; i < servers.size(); ++i) {
    ServerHello hello = cluster.hello_of(i);
    hello.host = servers[i].host;
    hello.bandwidth = servers[i].bandwidth;
    hello.stored = stored;
    cluster.say(server_peer(i), hello);
  }
  for (std::uint32_t w = 0; w < workers.size(); ++w) {
    cluster.say(worker_peer(w),
                WorkerHello{"n" + std::to_string(w), worker_incarnation(w), workers[w].host, workers[w].bandwidth});
  }
}

// A job that runs on these servers and workers.
struct Placed {
  Placed(const Places& servers, const Places& workers, const JoinOptions& options = model_of())
      : cluster(static_cast<std::uint16_t>(servers.size())) {
    arrive(cluster, servers, workers);
    cluster.run(static_cast<std::uint32_t>(workers.size()), options);
    REQUIRE(cluster.phase() == "running");
    placement = required(cluster.job().placement);
    for (const JobPlacement::Server& server : placement.servers) {
      chunks += (chunks.empty() ? "" : " ") + std::to_string(server.chunks);
    }
  }
  bool logged(const std::string& words) const {
    return std::ranges::any_of(cluster.logged, [&](const std::string& line) { return contains(line, words); });
  }
  Cluster cluster;
  JobPlacement placement;
  std::string chunks;  // by server
};

}  // namespace

TEST_CASE("two server machines beside four workers with servers get 0.3 each and the workers' servers 0.1 each") {
  const Placed job(places("s", 2) + places("w", 4), places("w", 4));
  CHECK(job.chunks == "72 72 24 24 24 24");
  INFO(job.placement.in_words());
  CHECK(name_of(job.placement.hosts.basis) == std::string("links"));
  CHECK(job.placement.servers[0].share == doctest::Approx(0.3));
  CHECK(job.placement.servers[0].bytes == 72 * kChunk * sizeof(float));
  CHECK_FALSE(job.placement.colocated(1));
  CHECK(job.placement.colocated(2));
  CHECK(job.placement.predicted.time_factor == doctest::Approx(1.2));
  CHECK(job.placement.optimal_factor == doctest::Approx(1.2));
  CHECK(job.placement.ring_factor == doctest::Approx(1.5));
  CHECK(job.logged(
      "predicted exchange 1.200 M/B (ring 1.500 M/B), bottleneck the link of the host of server 0, outwards: "
      "answers of its servers (5 other hosts' links take as long)"));
  CHECK(job.logged("server 0 30.0 % (dedicated)"));
  CHECK(job.logged("server 2 10.0 % (colocated)"));

  // Whatever part of the model a backward pass finishes first is spread like all of it.
  std::vector<double> dealt(6, 0.0);
  const std::vector<ChunkOwner>& owners = job.cluster.open().owners;
  REQUIRE(owners.size() == kChunks);
  for (std::size_t c = 0; c < owners.size(); ++c) {
    dealt[owners[c].shard.value] += 1;
    for (std::size_t s = 0; s < 6; ++s) {
      CHECK(std::abs(dealt[s] - static_cast<double>(c + 1) * (s < 2 ? 0.3 : 0.1)) < 1.0);
    }
  }
}

TEST_CASE("servers on the workers' hosts alone get equal shares and take as long as a ring") {
  const Placed job(places("w", 4), places("w", 4));
  CHECK(job.chunks == "60 60 60 60");
  CHECK(job.placement.predicted.time_factor == doctest::Approx(1.5));
  CHECK(job.placement.bottleneck() ==
        "the link of the host of server 0 and worker n0, outwards: pushes of its workers and answers of its servers "
        "(3 other hosts' links take as long)");
}

TEST_CASE("beside as many server machines as workers the workers' servers own nothing, and the job does without them") {
  Placed job(places("s", 4) + places("w", 4), places("w", 4));
  CHECK(job.chunks == "60 60 60 60 0 0 0 0");
  CHECK(job.placement.optimal_factor == doctest::Approx(1.0));
  CHECK(job.placement.predicted.time_factor == doctest::Approx(1.0));
  // Everybody opens the job, but only those with chunks keep snapshots of it.
  CHECK(job.cluster.to<JobWelcome>(worker_peer(0)).empty());  // forgotten by run()
  job.cluster.leave(0, LeaveKind::kStopped, 5);
  for (std::uint16_t i = 0; i < 4; ++i) {
    CHECK(job.cluster.phase() == "stopping");
    job.cluster.done(i, 5);
  }
  CHECK(job.cluster.phase() == "idle");
  CHECK(job.cluster.job().record.committed == Round(5));
}

TEST_CASE("with strongly unequal encodings the server machines are left idle") {
  const auto topk = *parse_encoding("topk:0.01");
  const Placed job(places("s", 2) + places("w", 4), places("w", 4), model_of(topk));
  CHECK(job.chunks == "0 0 60 60 60 60");
  CHECK(job.placement.ratio.push == doctest::Approx(0.015).epsilon(0.01));
  CHECK(job.placement.ratio.pull == 1.0);
  CHECK(job.placement.optimal_factor == doctest::Approx(0.7613).epsilon(0.001));
}

TEST_CASE("shares follow the links' bandwidths, and times are told in units of the slowest worker's link") {
  SUBCASE("server machines of their own") {
    const Placed job({{"s0", 10.0}, {"s1", 30.0}}, places("w", 4, 10.0));
    CHECK(job.chunks == "60 180");
    CHECK(job.placement.hosts.unit_bandwidth == 10.0);
    CHECK(job.placement.optimal_factor == doctest::Approx(1.0));
  }
  SUBCASE("a worker's host with a faster link") {
    const Placed job(places("w", 3) + Places{{"w3", 4.0}}, places("w", 3) + Places{{"w3", 4.0}});
    const auto& servers = job.placement.servers;
    CHECK(servers[3].chunks > 3 * servers[0].chunks);
    CHECK(servers[0].chunks == servers[1].chunks);
    CHECK(job.placement.predicted.time_factor < 1.3);
    CHECK(job.placement.hosts.unit_bandwidth == 1.0);
  }
}

TEST_CASE("state that servers have in memory keeps its chunks, when nodes join before there is a snapshot") {
  Cluster cluster(2);
  arrive(cluster, places("s", 2), places("w", 3));
  JoinOptions options;
  options.tensors = {{"w", {8'000'000}}};  // the size of chunks goes by the number of nodes
  options.config.membership.on_worker_loss = OnLoss::kContinue;
  cluster.run(2, options);
  const std::vector<ChunkOwner> owners = cluster.record().owners;
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 10, 10);
  options.node = 2;
  options.nodes = 3;
  cluster.join(2, options);
  for (std::uint32_t w = 0; w < 2; ++w) cluster.leave(w, LeaveKind::kFailed, 10, "lost");
  cluster.sent.clear();
  for (std::uint32_t w = 0; w < 3; ++w) {
    options.node = w;
    cluster.join(w, options);
  }
  const auto open = required(cluster.only<OpenJob>(server_peer(1)));
  CHECK(open.nodes == 3);
  CHECK(open.kept);
  CHECK_FALSE(open.resume);
  CHECK(open.owners == owners);
  // Another number of nodes would have had chunks of another size.
  Cluster other(2);
  arrive(other, places("s", 2), places("w", 3));
  other.run(3, options);
  CHECK(other.record().owners.size() != owners.size());
}

TEST_CASE("a host's share is split evenly over its servers") {
  const Placed job({{"a"}, {"a"}, {"b"}, {"b"}, {"b"}}, {{"a"}, {"a"}, {"b"}, {"b"}});
  CHECK(job.chunks == "60 60 40 40 40");
  CHECK(job.placement.optimal_factor == doctest::Approx(2.0));  // both workers of a host push through its link
  CHECK(job.placement.ring_factor == doctest::Approx(1.5));
  CHECK(job.placement.hosts.hosts[0].daemons.size() == 4);
}

TEST_CASE("where a daemon's host is not known, or there is only one, servers own by the bandwidths that they state") {
  const Places stated = {{"", 1.0}, {"", 3.0}};
  std::string basis;
  SUBCASE("no host is known") {
    const Placed job(stated, places("w", 2));
    CHECK(job.chunks == "60 180");
    basis = name_of(job.placement.hosts.basis);
    CHECK(basis == "hosts not known");
    CHECK(job.placement.bottleneck().empty());
  }
  SUBCASE("a worker's is not") {
    const Placed job({{"s0", 1.0}, {"s1", 3.0}}, {{"w0"}, {""}});
    CHECK(job.chunks == "60 180");
    basis = name_of(job.placement.hosts.basis);
    CHECK(basis == "hosts not known");
  }
  SUBCASE("all are on one") {
    const Placed job({{"here", 1.0}, {"here", 3.0}}, {{"here"}, {"here"}});
    CHECK(job.chunks == "60 180");
    basis = name_of(job.placement.hosts.basis);
    CHECK(basis == "one host");
    CHECK(job.placement.colocated(0));
    CHECK(job.logged("all on one host"));
    CHECK_FALSE(job.logged("bandwidths from"));
  }
}

TEST_CASE("chunks of a large model are larger where a node adds its gradients up on GPUs") {
  const auto chunk_bytes = [](std::uint64_t elements, bool on_devices) {
    JoinOptions options;
    options.tensors = {{"w", {elements}}};
    options.on_devices = on_devices;
    const Placed job({{"here", 1.0}}, {{"here"}, {"here"}}, options);
    return job.cluster.open().chunk_elements * sizeof(float);
  };
  constexpr std::uint64_t kLarge = 64u << 20, kSmall = 1u << 20;
  CHECK(chunk_bytes(kLarge, false) == kLargestChunkBytes);
  CHECK(chunk_bytes(kLarge, true) == kLargestDeviceChunkBytes);
  CHECK(chunk_bytes(kSmall, true) == chunk_bytes(kSmall, false));  // every lane has work
}

TEST_CASE("daemons of a host that state different bandwidths are told of, and the largest counts") {
  const Placed job({{"s0", 10.0}, {"s1", 10.0}, {"w0", 1.0}}, {{"w0", 10.0}, {"w1", 10.0}, {"w2", 10.0}});
  CHECK(job.logged("server 2 and worker n0 share the link of host 'w0' but state bandwidths from 1 to 10"));
  CHECK(job.placement.hosts.hosts[2].link.bandwidth == 10.0);
  CHECK(job.placement.hosts.unit_bandwidth == 10.0);
}

TEST_CASE("a resumed job keeps its shards on other hosts, and what it could have is told") {
  const Places old_servers = places("s", 2) + places("w", 4), workers = places("w", 4);
  Placed before(old_servers, workers);
  before.cluster.leave(0, LeaveKind::kStopped, 5);
  before.cluster.all_done(5);
  REQUIRE(before.cluster.phase() == "idle");
  const std::vector<StoredJob> stored = {{before.cluster.open().job, "mnist", 0, {Round(5)}}};

  Cluster after(6, before.cluster.records(), 8);
  CHECK_FALSE(after.job().placement);
  arrive(after, places("s", 6), workers, stored);  // every server has a machine of its own now
  after.run(4, model_of());
  CHECK(after.phase() == "running");
  CHECK(after.open().resume);
  CHECK(after.open().owners == before.cluster.open().owners);
  const auto placement = required(after.job().placement);
  CHECK(placement.predicted.time_factor == doctest::Approx(1.2));  // 4 workers push 0.3 of the model to server 0
  CHECK(placement.optimal_factor == doctest::Approx(1.0));
  CHECK(std::ranges::any_of(after.logged, [](const std::string& line) {
    return contains(line, "keeps the shards that it was dealt for other hosts");
  }));
}

TEST_CASE("a worker whose bandwidth is impossible is refused in words") {
  Cluster cluster(1);
  cluster.say(worker_peer(0), WorkerHello{"n0", worker_incarnation(0), "w0", 0.0});
  const auto error = required(cluster.only<ControlError>(worker_peer(0)));
  CHECK(contains(error.message, "worker n0 has bandwidth 0"));
  CHECK(cluster.core.peers().empty());
}

TEST_CASE("a share below half a chunk is no share, and does not make the chunks smaller") {
  const std::vector<TensorSpec> tensors = {{"w", {kChunk * 16}}};
  JobHosts here;
  here.basis = PlacementBasis::kOneHost;
  here.workers = 1;
  const auto owners = [&](std::uint64_t chunk_elements, std::vector<double> weights) {
    std::vector<ShardSlots> slots;
    for (const double weight : weights) slots.push_back({1, weight});
    const auto layout = required(place_chunks(tensors, chunk_elements, slots, here));
    std::vector<int> chunks(weights.size(), 0);
    for (const ChunkOwner& owner : layout.owners()) ++chunks[owner.shard.value];
    std::string text;
    for (const int count : chunks) text += (text.empty() ? "" : " ") + std::to_string(count);
    return text;
  };
  CHECK(owners(kChunk, {0.9, 0.1}) == "15 1");
  CHECK(owners(kChunk, {0.97, 0.03}) == "16 0");
  // 1 MiB of parameters with servers of one lane: two chunks of 512 KiB are too few for it, 16 of 64 KiB are not.
  CHECK(place_chunks(tensors, 0, {{1, 1.0}}, here)->chunk_elements() == 2 * kChunk);
  CHECK(place_chunks(tensors, 0, {{1, 1.0}, {1, 1e-6}}, here)->chunk_elements() == 2 * kChunk);
  // Over a network as well only servers with chunks count.
  JobHosts apart = here;
  apart.basis = PlacementBasis::kLinks;
  apart.workers = 4;
  const std::vector<TensorSpec> large = {{"w", {kChunk * 1024}}};
  const std::vector<ShardSlots> one = {{1, 1.0}};
  const auto fine = place_chunks(large, 0, {{1, 1.0}, {1, 1e-6}, {1, 0.0}}, apart);
  CHECK(fine->chunk_elements() == default_chunk_elements(kChunk * 1024, one, 4, false));
  CHECK(fine->chunk_elements() < place_chunks(large, 0, one, here)->chunk_elements());
  // Fewer chunks than servers of equal weight: one each, from the first on.
  CHECK(owners(kChunk * 8, {1, 1, 1, 1, 1}) == "1 1 0 0 0");
  CHECK(owners(kChunk * 16, {1, 1, 1}) == "1 0 0");
  CHECK(owners(kChunk * 16, {1, 3}) == "0 1");
}

}  // namespace tributary::coordinator_placement_test
