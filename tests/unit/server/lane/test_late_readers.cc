// Workers on a server's machine that read their answers long after the server's next steps: a real lane, and a worker
// by hand, which reads on the test's command.
#include <doctest/doctest.h>

#include "common/math/encoding.h"
#include "common/wire/local_link.h"
#include "tests/unit/required.h"
#include "tests/unit/server/lane/lane_fixture.h"

namespace tributary::late_readers_test {
namespace {

using namespace testing;

struct Server {
  Server() {
    auto started =
        required(Lane::start({{ShardIndex(0), LaneIndex(0)}, "tcp://127.0.0.1:*", ""}, listener, quiet_logger()));
    lane = std::move(started);
  }
  void open(const ShardJob& job) {
    lane->open(job, std::make_shared<LaneJobGauges>());
    lane->opened(job.view->job, job.view->view, false);
    required(required(listener.opened()));
  }
  // The view is over, and the next one goes on with what the lane has.
  void reopen(const ShardJob& job) {
    lane->park(job.view->job, ViewId(job.view->view.value - 1));
    const auto parked = required(listener.parked());
    REQUIRE(parked.any);
    lane->reopen(job, std::make_shared<LaneJobGauges>());
    lane->opened(job.view->job, job.view->view, false);
    required(required(listener.opened()));
  }
  void stop(const ShardJob& job) {
    // The second one is carried out when the lane has had a turn after the first.
    for (int i = 0; i < 2; ++i) {
      lane->stop_job(job.view->job, job.view->view, false, Round(0), false);
      REQUIRE(listener.stopped());
    }
  }
  Listener listener;
  std::unique_ptr<Lane> lane;
};

// One node's lane, linked to the server's.
class Reader {
 public:
  Reader(Server& server, const ShardJob& job, NodeRank node)
      : job_(job), node_(node), client_(server.lane->endpoint()) {
    socket_ = required(connect_link(server.lane->link_name()));
    auto memory = required(SharedMemory::create(4096, "a test", SharedMemory::Peers::kRead));
    const int region = memory.fd();
    REQUIRE(send_link(socket_.get(), LinkRequest{job.view->job, job.view->view, node}, {&region, 1}));
    Result<std::optional<LinkReceived<LinkReply>>> reply;
    REQUIRE(eventually([&] {
      if (reply && !*reply) reply = receive_link_reply(socket_.get());
      return !reply || *reply;
    }));
    REQUIRE(reply);
    link_ = (*reply)->message.link;
    REQUIRE(link_ != 0);
    buffers_ = required(SharedMemory::map_sealed(std::move((*reply)->fds.at(0)), "a test"));
  }
  ChunkKey key(std::uint32_t chunk) const { return {job_.view->job, job_.view->view, node_, ChunkIndex(chunk)}; }

  void send(const DataMessage& message, std::optional<std::vector<float>> frame = std::nullopt) {
    alignas(8) std::byte scratch[kMaxErrorHeader];
    PayloadPlace place = read_;
    place.link = link_;
    const auto header = encode_data(message, scratch, place);
    frame ? client_.send_frames({header, as_bytes(*frame)}) : client_.send_frames({header});
  }
  // The place that the next answer is at; acks are passed over.
  PayloadPlace told() {
    for (;;) {
      zmq::message_t header;
      client_.socket().set(zmq::sockopt::rcvtimeo, 10'000);
      REQUIRE(client_.socket().recv(header));
      REQUIRE_FALSE(header.more());
      PayloadPlace place;
      const auto message = required(decode_data({static_cast<const std::byte*>(header.data()), header.size()}, &place));
      if (std::holds_alternative<Ack>(message)) continue;
      REQUIRE(std::holds_alternative<Answer>(message));
      REQUIRE(place.link == link_);
      return place;
    }
  }
  PayloadPlace pull(std::uint32_t chunk, std::uint64_t version) {
    send(Pull{key(chunk), Version(version)});
    return told();
  }
  // Looks there now.
  float first_value(const PayloadPlace& place) const {
    const auto bytes = required(payload_in(buffers_, place));
    std::vector<float> values(job_.view->layout->chunk(ChunkIndex(0)).elements);
    make_encoding(job_.plan().config.pull)->apply(bytes.data(), values.size(), values.data());
    CHECK(std::ranges::all_of(values, [&](float value) { return value == values.front(); }));
    return values.front();
  }
  void has_read(const PayloadPlace& place) {
    read_ = {};
    read_.ticket = place.ticket;
  }
  void close() { socket_.reset(); }

 private:
  const ShardJob job_;
  const NodeRank node_;
  RawClient client_;
  FileDescriptor socket_;
  std::uint32_t link_ = 0;
  SharedMemory buffers_;
  PayloadPlace read_;
};

ShardJob recovering_job(std::uint32_t nodes, std::uint64_t chunks, EncodingId pull) {
  ShardJob job = changed(small_job(nodes, chunks), [&](ViewPlan&, JobConfig& config) { config.pull = pull; });
  job.recovers = true;
  return job;
}

// Initial values 16, 32, ... of the chunks, and pushes of 2 for each of these rounds: a round takes 1 off.
void train(Server& server, const ShardJob& job, std::uint64_t chunks, std::uint64_t from, std::uint64_t to) {
  RawClient client(server.lane->endpoint());
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const auto key = [&](std::uint32_t node) {
      return ChunkKey{job.view->job, job.view->view, NodeRank(node), ChunkIndex(c)};
    };
    if (from == 1) client.send(Init{key(0)}, as_bytes(filled(16.0f * static_cast<float>(c + 1))));
    for (std::uint64_t round = from; round <= to; ++round) {
      for (std::uint32_t node = 0; node < job.view->nodes; ++node) client.push(key(node), round, filled(2.0f));
      for (std::uint32_t answers = 0; answers < job.view->nodes;) {
        const auto reply = required(client.receive());
        REQUIRE_FALSE(std::holds_alternative<ErrorReply>(reply.message));
        answers += std::holds_alternative<Answer>(reply.message) ? 1 : 0;
      }
    }
  }
}

TEST_CASE("whoever goes back a round gets each chunk's parameters, however late it reads them") {
  for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16}) {
    CAPTURE(encoding_name(pull));
    constexpr std::uint32_t kChunks = 4;
    ShardJob job = recovering_job(1, kChunks, pull);
    Server server;
    server.open(job);
    train(server, job, kChunks, 1, 3);
    job = changed(in_view(job, ViewId(2)), [](ViewPlan& view, JobConfig&) {
      view.nodes = 6;  // each is told where everything lies, before any reads it
    });
    server.reopen(job);
    std::vector<std::unique_ptr<Reader>> readers;
    std::vector<PayloadPlace> places;
    for (std::uint32_t node = 0; node < job.view->nodes; ++node) {
      readers.push_back(std::make_unique<Reader>(server, job, NodeRank(node)));
      for (std::uint32_t c = 0; c < kChunks; ++c) places.push_back(readers.back()->pull(c, 2));
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      CHECK(readers[i / kChunks]->first_value(places[i]) == 16.0f * static_cast<float>(i % kChunks + 1) - 2.0f);
    }
    CHECK(server.lane->counters().starved.value() == 0);
  }
}

TEST_CASE("what was told stays when the job is over, until the worker has gone") {
  ShardJob job = small_job(1, 2);
  Server server;
  server.open(job);
  train(server, job, 2, 1, 1);
  Reader reader(server, job, NodeRank(0));
  const PayloadPlace first = reader.pull(0, 1), second = reader.pull(1, 1);
  server.stop(job);
  CHECK(reader.first_value(first) == 15.0f);
  CHECK(reader.first_value(second) == 31.0f);
  reader.close();
  CHECK(eventually([&] { return server.lane->counters().pool_bytes.value() == 0.0; }));
}

TEST_CASE("a worker that is stopped keeps what it was told, while the others train on in later views") {
  for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16}) {
    CAPTURE(encoding_name(pull));
    ShardJob job = recovering_job(1, 2, pull);
    Server server;
    server.open(job);
    train(server, job, 2, 1, 2);
    Reader stopped(server, job, NodeRank(0));
    const PayloadPlace place = stopped.pull(1, 2);
    for (std::uint64_t view = 2; view <= 4; ++view) {
      job = in_view(job, ViewId(view));
      server.reopen(job);
      train(server, job, 2, 2 * view - 1, 2 * view);
      server.lane->snapshot_at(job.view->job, job.view->view, Round(2 * view));  // which takes buffers, too
      const auto started = required(server.listener.snapshot());
      CHECK(started);
      for (int i = 0; i < 2; ++i) REQUIRE(server.listener.captured());
    }
    CHECK(server.lane->counters().starved.value() == 0);
    CHECK(stopped.first_value(place) == 30.0f);
  }
}

TEST_CASE("steps are in place when every worker has said what it has read, and out of place where one has not") {
  for (const bool says : {true, false}) {
    CAPTURE(says);
    ShardJob job = small_job(2, 1);
    Server server;
    server.open(job);
    Reader first(server, job, NodeRank(0)), second(server, job, NodeRank(1));
    first.send(Init{first.key(0)}, filled(16.0f));
    PayloadPlace places[2] = {first.pull(0, 0), second.pull(0, 0)};
    for (std::uint64_t round = 1; round <= (says ? 6u : 2u); ++round) {  // the pool has room for so many
      first.has_read(places[0]);
      if (says) second.has_read(places[1]);
      first.send(Push{first.key(0), Round(round), 1}, filled(2.0f));
      second.send(Push{second.key(0), Round(round), 1}, filled(2.0f));
      const PayloadPlace told[2] = {first.told(), second.told()};
      CHECK(first.first_value(told[0]) == 16.0f - static_cast<float>(round));
      // An unread place keeps its values.
      CHECK(second.first_value(places[1]) == 16.0f - (says ? static_cast<float>(round) : 0.0f));
      places[0] = told[0];
      if (says) places[1] = told[1];
    }
    const auto& steps = server.lane->counters().out_of_place_steps;
    if (says) {
      CHECK(eventually([&] { return server.lane->counters().steps.value() == 6; }));
      CHECK(steps.value() == 0);
    } else {
      CHECK(eventually([&] { return steps.value() > 0; }));
    }
  }
}

TEST_CASE("a worker that says it has read what it was not told is refused") {
  ShardJob job = small_job(1, 1);
  Server server;
  server.open(job);
  train(server, job, 1, 1, 1);
  Reader reader(server, job, NodeRank(0));
  PayloadPlace place = reader.pull(0, 1);
  place.ticket += 1;
  reader.has_read(place);
  reader.send(Pull{reader.key(0), Version(1)});
  CHECK(eventually([&] { return server.lane->counters().malformed.value() == 1; }));
}

}  // namespace
}  // namespace tributary::late_readers_test
