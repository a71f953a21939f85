// How lanes on one machine come to share memory, and the memory that they refuse.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "common/wire/fd_packet.h"
#include "server/lane/lane_links.h"
#include "tests/unit/expect.h"
#include "tests/unit/other_user.h"
#include "tests/unit/required.h"
#include "worker/node/lane_link.h"

namespace tributary::local_link_test {
namespace {

constexpr std::size_t kRegion = 64u << 10, kBlock = 4096;
constexpr JobId kJob(7);
constexpr ViewId kView(3);
constexpr NodeRank kNode(1);
constexpr LinkRequest kRequest{kJob, kView, kNode};
constexpr ChunkKey kKey{kJob, kView, kNode, ChunkIndex(0)};
constexpr PeerId kPeer(11);

SharedMemory memory_of(std::size_t bytes, int value) {
  auto memory = required(SharedMemory::create(bytes, "a test", SharedMemory::Peers::kRead));
  std::memset(memory.data(), value, bytes);
  return memory;
}

// A server lane with one job.
struct ServerSide {
  explicit ServerSide(ShardIndex shard = ShardIndex(0)) { REQUIRE(links.listen(new_link_name(shard, LaneIndex(0)))); }
  void serve(std::uint64_t now_ms = 0) {
    links.serve(now_ms, [this](const LinkRequest& request) -> Result<LaneJobs::Shared> {
      if (request.job == kJob && request.view == kView && request.node.value < 2) return LaneJobs::Shared{pool, 4};
      return fail(ErrorCode::kUnknownJob, "no such job here");
    });
  }
  std::shared_ptr<BufferPool> pool = std::make_shared<BufferPool>(kBlock, 8);
  ToldPlaces told;
  LaneLinks links{told};
};

struct WorkerSide {
  LaneLink ask(const ServerSide& server, const LinkRequest& request = kRequest) {
    auto socket = required(connect_link(server.links.name()));
    auto link = required(LaneLink::ask(std::move(socket), request, {&frames, &parameters}, 0));
    CHECK(link.asked());
    CHECK_FALSE(link.shared());
    return link;
  }
  SharedMemory frames = memory_of(kRegion, 1), parameters = memory_of(2 * kRegion, 2);
};

struct Linked {
  Linked() : link(worker.ask(server)) {
    server.serve();
    REQUIRE(link.poll(0));
    REQUIRE(link.shared());
    REQUIRE(server.told.bind(kPeer, kKey, link.place({})));
  }
  ServerSide server;
  WorkerSide worker;
  LaneLink link;
};

TEST_CASE("lanes of root's share no memory with another user's, on either side") {
  if (!testing::can_be_another_user()) return;
  const std::string name = new_link_name(ShardIndex(9), LaneIndex(9));
  const auto listener = required(listen_for_links(name));
  CHECK(testing::as_another_user([&] { return connect_link(name).has_value(); }));  // root may have it anyway
  const auto accepted = failure_of(accept_link(listener.get()));
  CHECK(testing::contains(accepted.message, "of user 65534"));

  const std::string theirs = new_link_name(ShardIndex(9), LaneIndex(8));
  const testing::OtherUser impostor([&] { return listen_for_links(theirs); });
  const auto connected = failure_of(connect_link(theirs));
  CHECK(testing::contains(connected.message, "of user 65534"));
}

TEST_CASE("lanes that agree read each other's payloads where they lie") {
  Linked both;
  CHECK(both.server.told.size() == 1);
  CHECK(both.server.links.mapped_bytes() == 3 * kRegion);
  for (SharedMemory* region : {&both.worker.frames, &both.worker.parameters}) {
    const std::span<const std::byte> sent = region->bytes().subspan(1000, 500);
    const PayloadPlace place = both.link.place(sent);
    CHECK(place.bytes == 500);
    CHECK(place.offset == 1000);
    const auto payload = required(both.server.links.payload(place));
    CHECK(payload.bytes().data() != sent.data());
    CHECK(std::ranges::equal(payload.bytes(), sent));
    region->data()[1499] = std::byte{99};
    CHECK(payload.bytes()[499] == std::byte{99});
  }
  // Buffers that are acquired later are found, too.
  for (int i = 1; i <= 8; ++i) {
    const BufferRef answer = both.server.pool->acquire(100);
    std::memset(answer.data(), i, 100);
    const PayloadPlace place = both.server.told.tell(kPeer, kKey, answer).value();
    REQUIRE(place.bytes == 100);
    const auto received = required(both.link.payload(place));
    CHECK(std::ranges::equal(received, answer.bytes()));
  }
}

TEST_CASE("what lies elsewhere, or goes to somebody else, takes the socket") {
  Linked both;
  const std::vector<std::byte> elsewhere(100);
  CHECK(both.link.place(elsewhere).bytes == 0);
  CHECK(both.link.place(elsewhere).link != 0);
  const std::span<const std::byte> frames = both.worker.frames.bytes();
  CHECK(both.link.place({frames.data() + frames.size() - 1, 2}).bytes == 0);
  CHECK(both.link.place({frames.data() - 1, 2}).bytes == 0);
  BufferPool other(kBlock, 1);
  CHECK(both.server.told.tell(kPeer, kKey, other.acquire(100))->bytes == 0);
  const BufferRef answer = both.server.pool->acquire(100);
  CHECK(both.server.told.tell(PeerId(12), kKey, answer)->bytes == 0);
  CHECK(both.server.told.tell(kPeer, {kJob, kView, NodeRank(0), ChunkIndex(0)}, answer)->bytes == 0);
  CHECK(both.server.told.tell(kPeer, {kJob, ViewId(4), kNode, ChunkIndex(0)}, answer)->bytes == 0);
  CHECK(LaneLink().place(frames).link == 0);
}

TEST_CASE("a place that does not lie in what was shared is refused, whatever its numbers") {
  Linked both;
  const std::uint32_t link = both.link.place({}).link;
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  const PayloadPlace wrong[] = {{link, 0, 0, kRegion + 1},
                                {link, 0, kRegion, 1},
                                {link, 0, kRegion - 10, 11},
                                {link, 0, kHuge, 1},
                                {link, 0, 1, kHuge},
                                {link, 0, kHuge, kHuge},
                                {link, 2, 0, 1},
                                {link, ~0u, 0, 1},
                                {link + 1, 0, 0, 1},
                                {0, 0, 0, 1},
                                {link, 1, 2 * kRegion, 1},
                                {link, 1, 0, kHuge - 3},
                                {link, 0, kHuge - kRegion, 8},
                                {~0u, 0, 0, 1}};
  for (const PayloadPlace& place : wrong) {
    CAPTURE(place.link);
    CAPTURE(place.region);
    CAPTURE(place.offset);
    CAPTURE(place.bytes);
    const auto taken = failure_of(both.server.links.payload(place));
    CHECK(taken.code == ErrorCode::kInvalidArgument);
    if (place.region == 0) CHECK_FALSE(both.link.payload({place.link, 0, place.offset + (1u << 20), place.bytes}));
  }
  CHECK(both.server.links.payload({link, 0, kRegion - 10, 10}));
  CHECK_FALSE(both.server.told.bind(kPeer, kKey, {link + 1, 0, 0, 0}));
  CHECK_FALSE(both.server.told.bind(kPeer, {kJob, kView, NodeRank(0), ChunkIndex(0)}, {link, 0, 0, 0}));
  CHECK_FALSE(both.server.told.bind(kPeer, {kJob, ViewId(4), kNode, ChunkIndex(0)}, {link, 0, 0, 0}));
}

TEST_CASE("what one side has mapped stays readable when the other is gone") {
  std::optional<Payload> held;
  LaneLink link;
  std::span<const std::byte> received;
  {
    ServerSide server;
    {
      WorkerSide worker;
      link = worker.ask(server);
      server.serve();
      REQUIRE(link.poll(0));
      REQUIRE(server.told.bind(kPeer, kKey, link.place({})));
      auto payload = required(server.links.payload(link.place(worker.frames.bytes().first(kBlock))));
      held.emplace(std::move(payload));
    }
    const BufferRef answer = server.pool->acquire(kBlock);
    std::memset(answer.data(), 5, kBlock);
    received = required(link.payload(server.told.tell(kPeer, kKey, answer).value()));
    server.told.end_view(kJob);
    server.links.forget_those_over();
    CHECK(server.told.size() == 0);
    CHECK(std::ranges::all_of(held->bytes(), [](std::byte b) { return b == std::byte{1}; }));
  }
  CHECK(std::ranges::all_of(held->bytes(), [](std::byte b) { return b == std::byte{1}; }));
  CHECK(std::ranges::all_of(received, [](std::byte b) { return b == std::byte{5}; }));
}

TEST_CASE("a worker's end that is gone gives back what it was told, also after the view") {
  for (const bool over : {false, true}) {
    Linked both;
    std::vector<zmq::pollitem_t> items;
    both.server.links.add_poll_items(items, 0);
    CHECK(items.size() == 2);  // the listener and the link
    CHECK(both.server.told.tell(kPeer, kKey, both.server.pool->acquire(100))->ticket == 1);
    if (over) both.server.told.end_view(kJob);
    both.server.links.forget_those_over();
    both.server.serve();
    CHECK(both.server.pool->in_use() == 1);
    if (over) CHECK(both.server.links.mapped_bytes() == 0);
    both.link = LaneLink();
    REQUIRE(zmq_poll(items.data(), 2, 1000) == 1);
    both.server.serve();
    CHECK(both.server.pool->in_use() == 0);
    items.clear();
    both.server.links.add_poll_items(items, 0);
    CHECK(items.size() == 1);
  }
}

TEST_CASE("what was read last is named in every message, and nothing before it is read any more") {
  Linked both;
  CHECK(both.link.place({}).ticket == 0);
  const BufferRef answer = both.server.pool->acquire(100);
  const PayloadPlace first = both.server.told.tell(kPeer, kKey, answer).value();
  const PayloadPlace second = both.server.told.tell(kPeer, kKey, answer).value();
  CHECK(both.link.payload(first));
  REQUIRE(both.link.payload(second));
  both.link.read(second);
  CHECK(both.link.place({}).ticket == second.ticket);
  CHECK_FALSE(both.link.payload(first));
  CHECK_FALSE(both.link.payload(second));
  CHECK(both.server.told.bind(kPeer, kKey, both.link.place({})));
  CHECK(answer.unique());
}

TEST_CASE("a new link of a node takes the place of the one before") {
  Linked both;
  const PayloadPlace before = both.link.place(both.worker.frames.bytes().first(8));
  WorkerSide again;
  LaneLink link = again.ask(both.server);
  both.server.serve();
  REQUIRE(link.poll(0));
  CHECK(both.server.told.size() == 1);
  CHECK_FALSE(both.server.links.payload(before));
  CHECK(both.server.links.payload(link.place(again.frames.bytes().first(8))));
}

// The server's refusal, as the worker gets it.
Error refusal(ServerSide& server, LaneLink link) {
  server.serve();
  const auto status = failure_of(link.poll(0));
  CHECK_FALSE(link.asked());
  CHECK_FALSE(link.shared());
  CHECK(server.told.size() == 0);
  CHECK_FALSE(server.links.pending());
  return status;
}

TEST_CASE("a link for a job, view or node that is not open is refused with the reason") {
  for (const LinkRequest& request : {LinkRequest{JobId(8), kView, kNode}, LinkRequest{kJob, ViewId(2), kNode},
                                     LinkRequest{kJob, kView, NodeRank(2)}}) {
    ServerSide server;
    WorkerSide worker;
    const Error error = refusal(server, worker.ask(server, request));
    CHECK(error.code == ErrorCode::kUnknownJob);
    CHECK(error.message == "no such job here");
  }
}

// Sends what no worker of ours does, and returns the server's words.
Error refused_by_hand(std::span<const std::byte> bytes, std::span<const int> fds) {
  ServerSide server;
  auto socket = required(connect_link(server.links.name()));
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  REQUIRE(send_packet(socket.get(), {&part, 1}, fds) == 0);
  server.serve();
  const auto reply = required(required(receive_link_reply(socket.get())));
  CHECK(reply.message.link == 0);
  CHECK(reply.fds.empty());
  CHECK(server.told.size() == 0);
  return reply.message.why;
}

// The bytes of a good request.
std::array<std::byte, 256> good_request() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const FileDescriptor from(ends[0]), to(ends[1]);
  REQUIRE(send_link(from.get(), kRequest, {}));
  std::array<std::byte, 256> bytes;
  REQUIRE(read(to.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  return bytes;
}

TEST_CASE("noise, other versions and descriptors that are no sealed memory are refused with the reason") {
  const auto request = good_request();
  const SharedMemory memory = memory_of(kRegion, 1);
  const int good = memory.fd();
  CHECK(testing::contains(refused_by_hand(request, {}).message, "0 regions"));
  const std::array many{good, good, good, good, good};
  CHECK(testing::contains(refused_by_hand(request, many).message, "5 regions"));
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC));
  REQUIRE(ftruncate(unsealed.get(), kRegion) == 0);
  const std::array mixed{good, unsealed.get()};
  CHECK(refused_by_hand(request, mixed).code == ErrorCode::kMalformed);
  const FileDescriptor file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::array no_memory{file.get()};
  CHECK(refused_by_hand(request, no_memory).code == ErrorCode::kMalformed);

  const std::array one{good};
  CHECK(refused_by_hand(std::span(request).first(255), one).code == ErrorCode::kMalformed);
  CHECK(refused_by_hand(std::span(request).first(1), one).code == ErrorCode::kMalformed);
  std::vector<std::byte> longer(request.begin(), request.end());
  longer.resize(300);
  CHECK(refused_by_hand(longer, one).code == ErrorCode::kMalformed);
  auto other = request;
  other[0] = std::byte{0};
  CHECK(refused_by_hand(other, one).code == ErrorCode::kMalformed);
  other = request;
  other[4] = std::byte{200};
  const Error version = refused_by_hand(std::span(other).first(100), one);
  CHECK(version.code == ErrorCode::kProtocolVersion);
  CHECK(testing::contains(version.message, "200"));
}

TEST_CASE("who connects and says nothing, or goes at once, is forgotten, and others are served") {
  ServerSide server;
  const auto silent = required(connect_link(server.links.name()));
  { required(connect_link(server.links.name())); }
  server.serve(0);
  CHECK(server.links.pending());
  WorkerSide worker;
  LaneLink link = worker.ask(server);
  server.serve(kLinkPatienceMs - 1);
  CHECK(link.poll(0));
  CHECK(link.shared());
  CHECK(server.links.pending());
  server.serve(kLinkPatienceMs);
  CHECK_FALSE(server.links.pending());
}

TEST_CASE("connections beyond the bound wait until there is room") {
  ServerSide server;
  std::vector<FileDescriptor> silent;
  for (std::size_t i = 0; i < LaneLinks::kMaxPending; ++i) {
    auto connected = required(connect_link(server.links.name()));
    silent.push_back(std::move(connected));
  }
  server.serve(0);
  WorkerSide worker;
  LaneLink link = worker.ask(server);
  server.serve(1);
  REQUIRE(link.poll(0));
  CHECK(link.asked());
  std::vector<zmq::pollitem_t> items;
  server.links.add_poll_items(items, 1);
  CHECK(items.size() == LaneLinks::kMaxPending);  // without the listener, which would be readable all the time
  server.serve(kLinkPatienceMs);
  server.serve(kLinkPatienceMs);
  CHECK(link.poll(0));
  CHECK(link.shared());
}

TEST_CASE("a worker that finds no server here, or gets no reply, learns why and uses the socket") {
  WorkerSide worker;
  const auto nowhere = failure_of(connect_link("tributary-test-nobody"));
  CHECK(testing::contains(nowhere.message, "another machine"));

  ServerSide server;
  LaneLink late = worker.ask(server);
  REQUIRE(late.poll(kLinkPatienceMs - 1));
  CHECK(late.asked());
  const auto overdue = failure_of(late.poll(kLinkPatienceMs));
  CHECK(overdue.code == ErrorCode::kTimeout);
  CHECK_FALSE(late.asked());

  std::optional<ServerSide> gone(std::in_place, ShardIndex(1));
  LaneLink orphan = worker.ask(*gone);
  gone.reset();
  const auto lost = failure_of(orphan.poll(0));
  CHECK(lost.code == ErrorCode::kUnavailable);
}

TEST_CASE("a reply without memory, with two, or with unsealed memory is refused") {
  const SharedMemory sealed = memory_of(kBlock, 1);
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC));
  REQUIRE(ftruncate(unsealed.get(), kBlock) == 0);
  const std::vector<std::vector<int>> replies = {{}, {sealed.fd(), sealed.fd()}, {unsealed.get()}};
  for (const std::vector<int>& fds : replies) {
    const std::string name = new_link_name(ShardIndex(0), LaneIndex(0));
    const auto listener = required(listen_for_links(name));
    WorkerSide worker;
    auto socket = required(connect_link(name));
    auto link = required(LaneLink::ask(std::move(socket), kRequest, {&worker.frames}, 0));
    const auto server = required(accept_link(listener.get()));
    const auto request = required(required(receive_link_request(server.get())));
    CHECK(request.message.job == kJob);
    CHECK(request.message.view == kView);
    CHECK(request.message.node == kNode);
    REQUIRE(send_link(server.get(), LinkReply{5, {}}, fds));
    CHECK_FALSE(link.poll(0));
    CHECK_FALSE(link.asked());
    CHECK_FALSE(link.shared());
  }
}

}  // namespace
}  // namespace tributary::local_link_test
