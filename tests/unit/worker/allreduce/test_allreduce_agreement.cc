// The agreement on where an all-reduce job is added up: a node's offer, the others' offers, and its reply to its
// trainers.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/worker/device/device_node_fixture.h"
#include "tests/unit/worker/node_fixture.h"
#include "worker/allreduce/allreduce_lane.h"

namespace tributary::allreduce_agreement_test {

using namespace testing;

namespace {

// A node of a job over `nodes`, with a rank on each of `ranks` (devices; -1: the host).
struct Member {
  explicit Member(Devices& devices, std::vector<int> ranks, std::uint32_t nodes,
                  std::chrono::milliseconds patience = std::chrono::seconds(20))
      : node(1, 64u << 20, devices.node), count(nodes) {
    const auto local = static_cast<std::uint32_t>(ranks.size());
    for (std::uint32_t rank = 0; rank < local; ++rank) {
      SessionOptions options = node.session_options(rank, local, local * nodes);
      options.job.mode = Mode::kAllreduce;
      options.attach_timeout = patience;
      if (ranks[rank] >= 0) options.device = devices.opener(static_cast<std::uint32_t>(ranks[rank]));
      attached.push_back(node.attach(options));
    }
    node.coordinator.await<JoinJob>();
  }
  void welcome(std::uint32_t view = 1) {
    JobWelcome welcome;
    const auto layout = required(bucket_layout(small_model(), 4096));
    welcome.name = "a-job";
    welcome.job = JobId(99);
    welcome.view = ViewId(view);
    welcome.chunk_elements = layout.chunk_elements();
    welcome.owners = layout.owners();
    welcome.nodes = count;
    node.server->on_control(welcome);
  }
  void hear(std::uint32_t from, const std::string& key, const std::string& value) {
    const auto bytes = std::as_bytes(std::span(value));
    const PeerAddress said{JobId(99), ViewId(1), NodeRank(from), key, {bytes.begin(), bytes.end()}};
    node.server->on_control(PeerAddresses{{said}});
  }
  std::vector<std::unique_ptr<Session>> sessions() {
    std::vector<std::unique_ptr<Session>> all;
    for (auto& one : attached) all.push_back(FakeNode::session_of(std::move(one)));
    return all;
  }
  std::string phase() const { return node.server->summaries().at(0).phase; }

  RunningNode node;
  const std::uint32_t count;
  std::vector<FakeNode::Attached> attached;
};

}  // namespace

TEST_CASE("a node alone adds up on its devices at once") {
  Devices devices(2);
  const Runner runner(devices.api);
  {
    Member member(devices, {0, 1}, 1);
    member.welcome();
    auto sessions = member.sessions();
    CHECK(member.node.coordinator.all<PeerAddress>().empty());
    const auto job = member.node.lanes.job();
    REQUIRE(job->spec().allreduce_devices);
    CHECK(job->spec().why_host.empty());
    for (std::size_t rank = 0; rank < 2; ++rank) {
      REQUIRE(sessions[rank]->on_device());
      const auto& lent = *job->spec().allreduce_devices;
      const std::uint64_t offset = sessions[rank]->layout().tensor_offset(2);
      CHECK(sessions[rank]->gradient_device(2) ==
            lent.gradients(static_cast<std::uint32_t>(rank), ChunkIndex(0)) + offset);
      CHECK(sessions[rank]->parameters_device(0) == lent.parameters(static_cast<std::uint32_t>(rank), ChunkIndex(0)));
    }
    CHECK(job->gradients(0) == nullptr);
    sessions.clear();
  }
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
}

TEST_CASE("nodes that all offer devices with the same NCCL add up there, when all have said so") {
  Devices devices(1);
  const Runner runner(devices.api);
  Member member(devices, {0}, 3);
  member.welcome();
  const PeerAddress offer = member.node.coordinator.await<PeerAddress>();
  CHECK(offer.key == kOfferKey);
  CHECK(offer.job == JobId(99));
  CHECK(offer.node == NodeRank(0));
  const std::string ours(reinterpret_cast<const char*>(offer.value.data()), offer.value.size());
  CHECK(ours == "fake NCCL\nGPU-fake-0");
  CHECK(member.node.coordinator.await<PeerAddress>(2).value == offer.value);  // the first may be lost
  member.hear(1, kOfferKey, "fake NCCL\nGPU-one");
  member.hear(1, kOfferKey, "fake NCCL\nGPU-one");  // again: it is one node all the same
  member.hear(1, "nccl", "an address, for the lane");
  REQUIRE(eventually([&] { return member.node.lanes.addresses().size() == 1; }));
  CHECK(eventually([&] { return member.phase() == "agreeing"; }));
  CHECK(member.node.lanes.opened() == 0);
  member.hear(2, kOfferKey, "fake NCCL\nGPU-two");
  auto sessions = member.sessions();
  CHECK(sessions[0]->on_device());
  CHECK(member.node.lanes.job()->spec().allreduce_devices);
  CHECK(member.node.lanes.addresses().size() == 1);  // offers are not for the lane
}

TEST_CASE(
    "one node that cannot, has another NCCL or the same device takes all to host memory, and the reason is kept") {
  struct Case {
    const char *key, *value, *why;
  };
  for (const Case& one : {Case{"gloo", "an address", "node 2 adds up in host memory"},
                          Case{kOfferKey, "NCCL 2.1.0\nGPU-two", "node 2 has NCCL 2.1.0, others have fake NCCL"},
                          Case{kOfferKey, "fake NCCL\nGPU-two\nGPU-fake-0",
                               "node 2 has a rank on GPU-fake-0, and so has node 0: NCCL takes one rank a device"}}) {
    CAPTURE(one.why);
    Devices devices(1);
    const Runner runner(devices.api);
    Member member(devices, {0}, 3);
    member.welcome();
    member.node.coordinator.await<PeerAddress>();
    member.hear(2, one.key, one.value);
    auto sessions = member.sessions();
    CHECK_FALSE(sessions[0]->on_device());
    const auto job = member.node.lanes.job();
    CHECK_FALSE(job->spec().allreduce_devices);
    CHECK(contains(job->spec().why_host, one.why));
    CHECK(member.node.lanes.addresses().size() == (std::string(one.key) == kOfferKey ? 0 : 1));
    CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
  }
}

TEST_CASE("two ranks on a device, or one on the host, are added up in host memory without asking anybody") {
  struct Case {
    std::vector<int> ranks;
    const char* why;
  };
  for (const Case& one : {Case{{0, 0}, "NCCL takes one rank a device"}, Case{{0, -1}, "host memory"},
                          Case{{0, 7}, "does not see"}, Case{{-1, -1}, ""}}) {
    CAPTURE(one.why);
    Devices devices(1);
    const Runner runner(devices.api);
    Member member(devices, one.ranks, 2);
    member.welcome();
    auto sessions = member.sessions();
    for (auto& session : sessions) CHECK_FALSE(session->on_device());
    CHECK(member.node.coordinator.all<PeerAddress>().empty());  // the lane's own address says it
    CHECK(contains(member.node.lanes.job()->spec().why_host, one.why));
    CHECK(member.node.lanes.job()->spec().why_host.empty() == (std::string(one.why).empty()));
  }
}

TEST_CASE("node_reduction = device refuses what would be added up in host memory") {
  Devices devices(1, "device");
  const Runner runner(devices.api);
  {
    Member member(devices, {0, 0}, 1);
    member.welcome();
    const Error error = error_of(std::move(member.attached[0]));
    CHECK(contains(error.message, "NCCL takes one rank a device"));
    CHECK(contains(error.message, "node_reduction = \"device\""));
  }
  Member member(devices, {0}, 2);
  member.welcome();
  member.node.coordinator.await<PeerAddress>();
  member.hear(1, "gloo", "an address");
  const Error error = error_of(std::move(member.attached[0]));
  CHECK(contains(error.message, "node 1 adds up in host memory"));
  CHECK(member.node.coordinator.await<LeaveJob>().kind == LeaveKind::kFailed);
}

TEST_CASE("a node that says nothing is named when the time is up") {
  Devices devices(1, "auto", 1u << 30, 200);
  const Runner runner(devices.api);
  Member member(devices, {0}, 3);
  member.welcome();
  member.hear(1, kOfferKey, "fake NCCL\nGPU-one");
  const Error error = error_of(std::move(member.attached[0]));
  CHECK(error.code == ErrorCode::kTimeout);
  CHECK(contains(error.message, "node 2 of job 'a-job' did not say within 200 ms"));
  CHECK(member.node.coordinator.await<LeaveJob>().kind == LeaveKind::kFailed);
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
}

TEST_CASE("a trainer that goes while nodes agree takes its node out of the view") {
  Devices devices(1);
  const Runner runner(devices.api);
  Member member(devices, {0}, 2, std::chrono::milliseconds(500));
  member.welcome();
  member.node.coordinator.await<PeerAddress>();
  CHECK_FALSE(member.attached[0].get().has_value());  // its patience is over
  const LeaveJob leave = member.node.coordinator.await<LeaveJob>();
  CHECK(leave.view == ViewId(1));
  CHECK(leave.kind == LeaveKind::kFailed);
  CHECK(contains(leave.message, "left before the job began"));
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
  CHECK(eventually([&] { return member.node.server->summaries().empty(); }));
}

TEST_CASE("a view that ends while nodes agree is joined anew, and a stop is told") {
  Devices devices(1);
  const Runner runner(devices.api);
  Member member(devices, {0}, 2);
  member.welcome();
  member.node.coordinator.await<PeerAddress>();
  member.node.server->on_control(StopJob{JobId(99), ViewId(1), StopKind::kRestart, Round(0), "a node is lost"});
  member.node.coordinator.await<JoinJob>(2);
  CHECK(eventually([&] { return devices.api->live() == FakeDeviceApi::Live{}; }));
  member.welcome(2);
  member.node.coordinator.await<PeerAddress>(2);
  CHECK(eventually([&] { return member.phase() == "agreeing"; }));  // the address is sent first
  member.node.server->on_control(StopJob{JobId(99), ViewId(2), StopKind::kStopped, Round(0), "somebody asked for it"});
  const Error error = error_of(std::move(member.attached[0]));
  CHECK(error.code == ErrorCode::kStopped);
  CHECK(contains(error.message, "somebody asked for it"));
}

}  // namespace tributary::allreduce_agreement_test
