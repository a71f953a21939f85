// The coordinator as a test plays it.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>
#include <zmq.hpp>

#include "common/base/clock.h"
#include "common/wire/codec.h"
#include "common/wire/messages.h"
#include "common/wire/zmq_util.h"
#include "tests/unit/required.h"

namespace tributary::testing {

// The coordinator's end of the wire, played by the test: answers hellos and heartbeats by itself, hands over everything
// else.
class FakeCoordinator {
 public:
  FakeCoordinator() : context_(1), socket_(context_, zmq::socket_type::router) {
    set_common_options(socket_, kMaxControlBytes, 1000);
    endpoint_ = *bind_endpoint(socket_, "tcp://127.0.0.1:*");
  }
  const std::string& endpoint() const { return endpoint_; }
  void send(const ControlMessage& message) {
    const std::vector<std::byte> bytes = encode_control(message);
    send_bytes(bytes);
  }
  void send_bytes(std::span<const std::byte> bytes) {
    zmq::message_t id(peer_.data(), peer_.size()), body(bytes.data(), bytes.size());
    if (send_now(socket_, id, true))
      CHECK(send_now(socket_, body, false));  // else the server is gone, as in some tests
  }
  // The next message of kind M; hellos and heartbeats on the way are answered with `incarnation`.
  template <class M>
  std::optional<M> expect(int timeout_ms = 10'000) {
    const std::uint64_t deadline = steady_ms() + static_cast<std::uint64_t>(timeout_ms);
    while (steady_ms() < deadline) {
      socket_.set(zmq::sockopt::rcvtimeo, 100);
      zmq::message_t id, body;
      if (!socket_.recv(id)) continue;
      REQUIRE(socket_.recv(body));
      peer_ = id.to_string();
      const auto message = required(decode_control({static_cast<const std::byte*>(body.data()), body.size()}));
      const auto* server = std::get_if<ServerHello>(&message);
      if (server) last_hello = *server;
      if (server || std::holds_alternative<WorkerHello>(message)) {
        ++hellos;
        send(HelloReply{incarnation, term});
      }
      if (const auto* beat = std::get_if<Heartbeat>(&message)) {
        last_beat = *beat;
        send(HeartbeatReply{incarnation});
      }
      if (const auto* wanted = std::get_if<M>(&message)) return *wanted;
    }
    return {};
  }

  std::uint64_t incarnation = 77;
  Term term;
  ServerHello last_hello;
  Heartbeat last_beat;
  int hellos = 0;

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::string endpoint_;
  std::string peer_;
};

}  // namespace tributary::testing
