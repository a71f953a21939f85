#include "worker/link_rates.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <zmq.hpp>

#include "common/base/clock.h"
#include "common/base/quantity.h"
#include "common/doctor/check_list.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "worker/local_address.h"
#include "worker/node/data_socket.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxMessage = kMaxDataPayload + 4096;
constexpr std::size_t kPayload = kMaxMeasuredPayload;  // of a message
constexpr std::uint64_t kWindow = 8;                   // messages of a lane that are under way
constexpr std::uint64_t kTrips = 20;                   // for the shortest
constexpr std::uint64_t kMeasureNs = 1'000'000'000;    // from the first payload that is back
constexpr std::uint64_t kMostMs = 10'000;              // of a link in all
constexpr long kPollMs = 20;
constexpr double kGoodShare = 0.5;  // of what the card says

class Link {
 public:
  Link(const Diagnose& order, const ServerLanes& server, const std::shared_ptr<const KeyPair>& own,
       const std::atomic<bool>& stopping)
      : stopping_(stopping), until_ms_(steady_ms() + kMostMs) {
    key_.view = ViewId(order.diagnosis);
    key_.node = order.node;
    for (std::uint16_t lane = 0; const std::string& endpoint : server.endpoints) {
      DataPeer peer{.endpoint = endpoint, .own = own};
      if (own) peer.key = server.key;
      if (own && server.plain) {
        peer.token = DataToken{key_.job, key_.view, key_.node, server.shard, LaneIndex(lane)};
      }
      contexts_.push_back(std::make_unique<zmq::context_t>(1));  // as lanes have them: a thread of ZeroMQ's each
      sockets_.emplace_back(*contexts_.back(), std::move(peer), kMaxMessage, static_cast<int>(kWindow));
      ++lane;
    }
  }
  ~Link() {
    for (DataSocket& to : sockets_) to.close();
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  Result<double> round_trip_s() {
    std::uint64_t shortest = ~std::uint64_t{0};
    for (std::uint64_t trip = 0; trip < kTrips; ++trip) {
      const std::uint64_t begin = steady_ns();
      send(sockets_.front(), 0);
      const auto came = wait();
      if (!came) return tl::unexpected(came.error());
      shortest = std::min(shortest, steady_ns() - begin);
    }
    return static_cast<double>(shortest) * 1e-9;
  }

  // From the first message that is back.
  Result<double> bytes_per_s() {
    for (DataSocket& to : sockets_) {
      for (std::uint64_t i = 0; i < kWindow; ++i) send(to, kPayload);
    }
    std::optional<std::uint64_t> begin;
    for (std::uint64_t back = 0;;) {
      const auto came = wait();
      if (!came) return tl::unexpected(came.error());
      const std::uint64_t now = steady_ns();
      if (begin) back += *came;
      if (!begin) begin = now;
      if (now - *begin >= kMeasureNs) return static_cast<double>(back) * 1e9 / static_cast<double>(now - *begin);
      send(sockets_[last_], kPayload);
    }
  }

 private:
  void send(DataSocket& to, std::size_t payload) {
    Push push;
    push.key = key_;
    alignas(8) std::byte scratch[kMaxErrorHeader];
    const auto bytes = encode_data(push, scratch);
    zmq::message_t header(bytes.data(), bytes.size());
    if (!send_now(to.socket(), header, payload != 0)) return;  // its silence is noticed
    if (payload == 0) return;
    zmq::message_t body(payload);
    std::fill_n(static_cast<char*>(body.data()), payload, '\0');
    send_now(to.socket(), body, false);
  }

  // Until one is back: the bytes of its payload. last_: over which connection.
  Result<std::uint64_t> wait() {
    std::string refused;
    for (const std::uint64_t until = std::min(steady_ms() + kSilenceMs, until_ms_); steady_ms() < until;) {
      if (stopping_.load(std::memory_order_acquire)) return fail(ErrorCode::kStopped, "nobody waits for it any more");
      std::vector<zmq::pollitem_t> items;
      for (DataSocket& to : sockets_) items.push_back({to.socket().handle(), 0, ZMQ_POLLIN, 0});
      zmq_poll(items.data(), static_cast<int>(items.size()), kPollMs);
      for (std::size_t turn = 1; turn <= sockets_.size(); ++turn) {
        const std::size_t lane = (last_ + turn) % sockets_.size();
        if (const auto why = sockets_[lane].tick(steady_ms())) refused = *why;
        zmq::message_t frames[2];  // header, payload
        const int count = receive_frames(sockets_[lane].socket(), frames);
        if (count == 0) continue;
        const auto message = decode_data(bytes_of(frames[0]));
        if (!message) return tl::unexpected(message.error());
        if (const auto* error = std::get_if<ErrorReply>(&*message)) return fail(error->code, error->message);
        last_ = lane;
        return count > 1 ? frames[1].size() : 0;
      }
    }
    return fail(ErrorCode::kTimeout,
                refused.empty() ? "nothing has come back for " + std::to_string(kSilenceMs / 1000) + " s" : refused);
  }

  const std::atomic<bool>& stopping_;
  ChunkKey key_;  // of no job
  const std::uint64_t until_ms_;
  std::vector<std::unique_ptr<zmq::context_t>> contexts_;  // by lane
  std::vector<DataSocket> sockets_;
  std::size_t last_ = 0;
};

Result<LinkRate> measure(const Diagnose& order, const ServerLanes& server, const std::shared_ptr<const KeyPair>& own,
                         const std::atomic<bool>& stopping) {
  try {
    Link link(order, server, own, stopping);
    const auto trip = link.round_trip_s();
    if (!trip) return tl::unexpected(trip.error());
    const auto rate = link.bytes_per_s();
    if (!rate) return tl::unexpected(rate.error());
    return LinkRate{.shard = server.shard, .bytes_per_s = *rate, .round_trip_s = *trip};
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kUnavailable, e.what());
  }
}

}  // namespace

MeasuredLinks measure_links(const Diagnose& order, const MeasuredFrom& from, const std::atomic<bool>& stopping) {
  MeasuredLinks all;
  CheckList out;
  out.section("links");
  for (const ServerLanes& server : order.cluster.lanes) {
    if (server.endpoints.empty() || stopping.load(std::memory_order_acquire)) continue;
    const std::string name = "rate to server " + std::to_string(server.shard.value);
    auto link = measure(order, server, from.own, stopping);
    if (!link) {
      out.problem(name, link.error().message, "see what is said of the way to that server, and its log");
      continue;
    }
    link->local = server.host == from.host;
    all.rates.push_back(*link);
    const std::string found = bandwidth_in_words(link->bytes_per_s) + " each way, round trip " +
                              seconds_in_words(link->round_trip_s) + (link->local ? ", on this machine" : "");
    const auto own = local_address_towards(server.endpoints.front());
    const auto stated = own ? stated_bytes_per_s(from.interfaces, *own) : std::nullopt;
    // With keys a processor encrypts, which is slower than many a card.
    if (!from.own && !link->local && stated && link->bytes_per_s < kGoodShare * *stated) {
      out.note(name, found + ", over a card of " + bandwidth_in_words(*stated),
               "something between is slower, or others use it (jobs that run, too): look at both machines' cables and "
               "switches, or add lanes");
    } else {
      out.ok(name, found);
    }
  }
  all.checks = out.take();
  return all;
}

}  // namespace tributary
