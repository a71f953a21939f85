// ControlLinkSim: a daemon's connection to the coordinator, as CoordinatorLink makes it: to one of the servers that may
// have it, by CoordinatorChoice. Daemons handle the messages themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/daemon/coordinator_choice.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

// Where server `place` listens if it may have the coordinator.
inline std::string coordinator_address(std::size_t place) {
  return place == 0 ? "coordinator" : "coordinator " + std::to_string(place);
}

class ControlLinkSim {
 public:
  // timeout_ms: a coordinator that is silent for so long is lost.
  ControlLinkSim(Wires& wires, Process& owner, std::size_t places, std::optional<Term> promised,
                 std::uint64_t timeout_ms, Dealer::Receive receive)
      : wires_(wires),
        owner_(owner),
        timeout_ms_(timeout_ms),
        receive_(std::move(receive)),
        choice_(places, timeout_ms, promised) {
    connect();
  }

  bool connected() const { return dealer_->connected(); }
  bool send(const ControlMessage& message) { return dealer_->send(Packet{message, {}, {}}); }
  std::size_t place() const { return choice_.at(); }
  Term promised() const { return choice_.promised(); }
  std::uint64_t heard_ms() const { return heard_ms_; }

  // Looks at each message that comes. False: it is no coordinator's, or one's that is to be left: the owner forgets the
  // coordinator that it knew.
  bool hears(const ControlMessage& message) {
    heard_ms_ = now_ms();
    if (const auto* reply = std::get_if<HelloReply>(&message); reply && !choice_.obeys(reply->term)) {
      if (choice_.leave(now_ms())) move();
      return false;
    }
    const auto* report = std::get_if<SeatReport>(&message);
    if (report && choice_.elsewhere(*report, now_ms())) move();
    return report == nullptr;
  }
  // The owner has forgotten the coordinator, and says hello again.
  void forgotten() { choice_.begin(now_ms()); }
  // Now and then. joined: the coordinator has answered. Returns whether the owner is to forget it.
  bool turn(bool joined) {
    if (!choice_.several()) return false;
    if (!joined) {
      if (choice_.tick(now_ms())) move();
      return false;
    }
    if (now_ms() <= heard_ms_ + timeout_ms_) return false;
    if (choice_.leave(now_ms())) move();
    return true;
  }

 private:
  std::uint64_t now_ms() const { return owner_.now_ns() / 1'000'000; }
  void connect() {
    dealer_ = std::make_unique<Dealer>(wires_, owner_, coordinator_address(choice_.at()), true, receive_);
    choice_.begin(now_ms());
  }
  // Later: the connection's own message may be the reason.
  void move() {
    owner_.after(0, [this, alive = std::weak_ptr(life_)] {
      if (alive.lock()) connect();
    });
  }

  Wires& wires_;
  Process& owner_;
  const std::uint64_t timeout_ms_;
  const Dealer::Receive receive_;
  CoordinatorChoice choice_;
  std::uint64_t heard_ms_ = 0;
  std::unique_ptr<Dealer> dealer_;
  const std::shared_ptr<char> life_ = std::make_shared<char>();
};

}  // namespace tributary::sim
