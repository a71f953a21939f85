#include "worker/node/data_socket.h"

#include "common/security/socket_keys.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr int kRefused =
    ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
constexpr int kLost = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | kRefused;
constexpr int kNeverByItself = -1;  // ZMQ_RECONNECT_IVL

}  // namespace

DataSocket::DataSocket(zmq::context_t& context, DataPeer peer, std::size_t max_message, int high_water)
    : peer_(std::move(peer)), socket_(context, zmq::socket_type::dealer) {
  set_common_options(socket_, max_message, high_water);
  if (peer_.token) {
    socket_.set(zmq::sockopt::reconnect_ivl, kNeverByItself);
    const std::string name = "data-" + token_name(*peer_.token) + " " + std::to_string(peer_.token->shard.value) + " " +
                             std::to_string(peer_.token->lane.value);
    events_.emplace(context, socket_, name, kLost);
  } else if (peer_.own) {
    connect_with(socket_, *peer_.own, peer_.key);
  }
  connect();
}

void DataSocket::connect() {
  if (peer_.token) {
    const auto proof = token_proof(*peer_.token, *peer_.own, peer_.key);
    // A key that nothing can be agreed on with shows nothing: the lane refuses it.
    connect_with_token(socket_, token_name(*peer_.token), proof.value_or("none"));
  }
  socket_.connect(peer_.endpoint);
}

std::optional<std::string> DataSocket::look() {
  std::optional<std::string> why;
  for (int i = 0; i < SocketEvents::kBatch; ++i) {
    const auto event = events_->next();
    if (!event) break;
    lost_ |= (event->kind & kLost) != 0;
    if ((event->kind & kRefused) != 0) {
      why = "the lane at " + peer_.endpoint + " does not take the token of this node; its server's log says why";
    }
  }
  return why;
}

std::optional<std::string> DataSocket::tick(std::uint64_t now_ms) {
  if (!peer_.token || !socket_) return {};
  std::optional<std::string> why = look();
  if (!lost_ || now_ms < again_ms_) return why;
  lost_ = false;
  again_ms_ = now_ms + kAgainMs;
  ++peer_.token->use;
  zmq_disconnect(socket_.handle(), peer_.endpoint.c_str());  // what is left of the old connection, if anything is
  connect();
  return why;
}

void DataSocket::close() {
  events_.reset();
  socket_.close();  // LINGER 0
}

}  // namespace tributary
