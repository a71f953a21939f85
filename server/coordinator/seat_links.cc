#include "server/coordinator/seat_links.h"

#include <utility>

#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"

namespace tributary {

Result<std::unique_ptr<SeatLinks>> SeatLinks::open(zmq::context_t& context, const std::vector<std::string>& addresses,
                                                   ShardIndex place, const Credentials& credentials) {
  std::unique_ptr<SeatLinks> self(new SeatLinks);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const ShardIndex other(static_cast<std::uint16_t>(i));
    if (other == place) continue;
    try {
      zmq::socket_t socket(context, zmq::socket_type::dealer);
      set_common_options(socket, kMaxControlBytes, kHighWater);
      socket.set(zmq::sockopt::immediate, true);
      if (credentials.own) connect_with(socket, *credentials.own, credentials.coordinators.at(i).key);
      socket.connect(addresses[i]);
      self->links_.push_back({other, std::move(socket)});
    } catch (const zmq::error_t& e) {
      return fail(ErrorCode::kConfig, "[server] coordinator = \"" + addresses[i] + "\" cannot be used: " + e.what());
    }
  }
  return self;
}

SeatLinks::~SeatLinks() {
  for (Link& link : links_) link.socket.set(zmq::sockopt::linger, 0);
}

void SeatLinks::send(const SeatReport& report) {
  const std::vector<std::byte> bytes = encode_control(report);
  for (Link& link : links_) {
    zmq::message_t frame(bytes.data(), bytes.size());
    send_now(link.socket, frame, false);
  }
}

std::vector<SeatReport> SeatLinks::receive() {
  std::vector<SeatReport> reports;
  for (Link& link : links_) {
    zmq::message_t body;
    while (receive_frames(link.socket, {&body, 1}) == 1) {
      const Result<ControlMessage> message = decode_control(bytes_of(body));
      const auto* report = message ? std::get_if<SeatReport>(&*message) : nullptr;
      if (report && report->place == link.place) reports.push_back(*report);
    }
  }
  return reports;
}

}  // namespace tributary
