#include "common/daemon/refusal_watch.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kMaxEvents = 64;  // a call

}  // namespace

RefusalWatch::RefusalWatch(zmq::context_t& context, zmq::socket_t& socket)
    : watched_(socket), events_(context, zmq::socket_type::pair) {
  // One socket a context is watched.
  const std::string endpoint = "inproc://refusals";
  zmq_socket_monitor(socket.handle(), endpoint.c_str(), kEvents);
  events_.set(zmq::sockopt::linger, 0);
  events_.connect(endpoint);
}

RefusalWatch::~RefusalWatch() {
  zmq_socket_monitor(watched_.handle(), nullptr, 0);
}

std::optional<std::string> RefusalWatch::failed(bool with_keys) {
  std::optional<std::string> why;
  for (int i = 0; i < kMaxEvents; ++i) {
    zmq::message_t frames[2];  // u16 event, u32 value; address
    if (receive_frames(events_, frames) == 0) break;
    if (frames[0].size() < sizeof(std::uint16_t)) continue;
    std::uint16_t event = 0;
    std::memcpy(&event, frames[0].data(), sizeof event);
    succeeded_ = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    if (succeeded_) {
      why.reset();
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
      why =
          "it does not let this daemon's key in: its operator must put the .pub file into the folder that [security] "
          "authorized names there (`tributary keys new` makes both)";
    } else if (with_keys) {
      why =
          "it does not show the key that [security] coordinator_key names, or has none: give this daemon the "
          "coordinator's .pub file";
    } else {
      why = "it wants keys, and this daemon has none: set [security] keys (`tributary keys new` makes them)";
    }
  }
  return why;
}

// What is left of the old connection goes first: two to one peer would take turns.
void RefusalWatch::connect_again(const std::string& endpoint) {
  zmq_disconnect(watched_.handle(), endpoint.c_str());
  zmq_connect(watched_.handle(), endpoint.c_str());
}

}  // namespace tributary
