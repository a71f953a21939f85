#include "common/daemon/refusal_watch.h"

namespace tributary {
namespace {

constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

}  // namespace

// Watches one socket a context.
RefusalWatch::RefusalWatch(zmq::context_t& context, zmq::socket_t& socket)
    : watched_(socket), events_(context, socket, "refusals", kEvents) {}

std::optional<std::string> RefusalWatch::failed(bool with_keys) {
  std::optional<std::string> why;
  for (int i = 0; i < SocketEvents::kBatch; ++i) {
    const auto event = events_.next();
    if (!event) break;
    succeeded_ = event->kind == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    if (succeeded_) {
      why.reset();
    } else if (event->kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
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

std::optional<std::string> RefusalWatch::keep_up(const std::string& endpoint, bool with_keys, std::uint64_t now_ms) {
  std::optional<std::string> why = failed(with_keys);
  if (why) again_ms_ = now_ms + kAgainMs;
  if (succeeded_) again_ms_ = 0;
  if (again_ms_ != 0 && now_ms >= again_ms_) {
    again_ms_ = 0;
    connect_again(endpoint);
  }
  return why;
}

// Disconnects the old connection first, because two connections to one peer would take turns.
void RefusalWatch::connect_again(const std::string& endpoint) {
  zmq_disconnect(watched_.handle(), endpoint.c_str());
  zmq_connect(watched_.handle(), endpoint.c_str());
}

}  // namespace tributary
