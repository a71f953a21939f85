// Keys on a socket of ZeroMQ (docs/security.md). With CURVE the listener proves its key to a connecting peer, and
// admits peers that the context's admission (server/coordinator/cluster/admission.h) knows; with PLAIN those with a one-time token
// (data_tokens.h). A peer with neither is refused. The domain is enforced: a missing admission refuses all peers.
#pragma once

#include <string>
#include <zmq.hpp>

#include "common/security/keys.h"

namespace tributary {

inline constexpr const char* kZapDomain = "tributary";
inline constexpr int kZapEnforceDomain =
    93;  // ZMQ_ZAP_ENFORCE_DOMAIN: in the library since 4.3.0, in the header a draft
// Time for a handshake. Connections that have none yet are bounded in number (server/coordinator/cluster/connection_book.h).
inline constexpr int kHandshakeMs = 15'000;

// Before bind().
inline void ask_admission(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  socket.set(zmq::sockopt::zap_domain, kZapDomain);
  const int enforced = 1;
  if (zmq_setsockopt(socket.handle(), kZapEnforceDomain, &enforced, sizeof enforced) != 0) throw zmq::error_t();
}
inline void accept_with(zmq::socket_t& socket, const KeyPair& own) {
  ask_admission(socket);
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_publickey, own.identity.key);
  socket.set(zmq::sockopt::curve_secretkey, own.secret);
}

inline void accept_tokens(zmq::socket_t& socket) {
  ask_admission(socket);
  socket.set(zmq::sockopt::plain_server, true);
}

// Call before connect(): only the owner of this public key is accepted as the peer.
inline void connect_with(zmq::socket_t& socket, const KeyPair& own, const std::string& server_key) {
  socket.set(zmq::sockopt::curve_serverkey, server_key);
  socket.set(zmq::sockopt::curve_publickey, own.identity.key);
  socket.set(zmq::sockopt::curve_secretkey, own.secret);
}

// Before each connect(); both go in clear.
inline void connect_with_token(zmq::socket_t& socket, const std::string& name, const std::string& proof) {
  socket.set(zmq::sockopt::plain_username, name);
  socket.set(zmq::sockopt::plain_password, proof);
}

// Returns the public key of a received frame's peer; "": it came over a connection without keys.
inline std::string key_of(const zmq::message_t& frame) {
  const char* id = zmq_msg_gets(const_cast<zmq::message_t&>(frame).handle(), "User-Id");
  return id ? id : "";
}

}  // namespace tributary
