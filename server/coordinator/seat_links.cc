#include "server/coordinator/seat_links.h"

#include <utility>

#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"

namespace tributary {

Result<std::unique_ptr<SeatLinks>> SeatLinks::open(zmq::context_t& context, const std::vector<std::string>& addresses,
                                                   ShardIndex place, const Credentials& credentials, Logger logger) {
  std::unique_ptr<SeatLinks> self(new SeatLinks(credentials.own != nullptr, std::move(logger)));
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const ShardIndex other(static_cast<std::uint16_t>(i));
    if (other == place) continue;
    try {
      auto link = std::make_unique<Link>();
      link->place = other;
      link->address = addresses[i];
      link->socket = zmq::socket_t(context, zmq::socket_type::dealer);
      set_common_options(link->socket, kMaxControlBytes, kHighWater);
      link->socket.set(zmq::sockopt::immediate, true);
      if (credentials.own) connect_with(link->socket, *credentials.own, credentials.coordinators.at(i).key);
      link->refusals.emplace(context, link->socket);
      link->socket.connect(addresses[i]);
      self->links_.push_back(std::move(link));
    } catch (const zmq::error_t& e) {
      return fail(ErrorCode::kConfig, "[server] coordinator = \"" + addresses[i] + "\" cannot be used: " + e.what());
    }
  }
  return self;
}

SeatLinks::~SeatLinks() {
  for (const auto& link : links_) {
    link->refusals.reset();
    link->socket.set(zmq::sockopt::linger, 0);
  }
}

void SeatLinks::send(const SeatReport& report) {
  const std::vector<std::byte> bytes = encode_control(report);
  for (const auto& link : links_) {
    zmq::message_t frame(bytes.data(), bytes.size());
    send_now(link->socket, frame, false);
  }
}

std::vector<SeatReport> SeatLinks::receive() {
  std::vector<SeatReport> reports;
  for (const auto& link : links_) {
    zmq::message_t body;
    for (int i = 0; i < kBatch && receive_frames(link->socket, {&body, 1}) == 1; ++i) {
      const Result<ControlMessage> message = decode_control(bytes_of(body));
      const auto* report = message ? std::get_if<SeatReport>(&*message) : nullptr;
      if (!report) continue;
      if (report->place == link->place) {
        reports.push_back(*report);
      } else if (!std::exchange(link->misplaced, true)) {
        logger_->error("server {} is at {}, which [server] coordinator lists as server {}'s: make the lists the same",
                       report->place.value, link->address, link->place.value);
      }
    }
  }
  return reports;
}

void SeatLinks::tick(std::uint64_t now_ms) {
  for (const auto& link : links_) {
    const std::optional<std::string> why = link->refusals->keep_up(link->address, keys_, now_ms);
    if (link->refusals->succeeded()) link->refusal.clear();
    if (!why || *why == link->refusal) continue;
    link->refusal = *why;
    logger_->error("server {}, which may have the coordinator, at {} refuses this one: {}", link->place.value,
                   link->address, *why);
  }
}

}  // namespace tributary
