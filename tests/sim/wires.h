// The network of a simulated cluster: processes that can be killed or held up, and between them connections as ZeroMQ's
// DEALER and ROUTER sockets make them over TCP.
//
// Messages of a connection arrive in order and once, or, when the connection breaks, up to some message and no further.
// Messages of a broken connection may arrive after messages of its successor. A connection that the network has
// forgotten carries nothing, and one end or both may not notice for long. A listener may ask for less (Disorder). A
// dealer connects again by itself, under another PeerId. Nothing passes between two machines while they are cut off
// from each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"
#include "tests/sim/random.h"
#include "tests/sim/virtual_clock.h"

namespace tributary::sim {

// Ends when it is destroyed: what it was about to do is not done.
class Process {
 public:
  Process(VirtualClock& clock, std::uint32_t machine) : clock_(clock), machine_(machine) {}
  virtual ~Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void after(std::uint64_t delay_ns, std::function<void()> action);
  // As a machine that swaps, or SIGSTOP: whatever is due before then waits until then, and keeps its order.
  void hold_until(std::uint64_t at_ns) { life_->held_until_ns = std::max(life_->held_until_ns, at_ns); }
  std::uint32_t machine() const { return machine_; }
  std::uint64_t now_ns() const { return clock_.now_ns(); }

 private:
  struct Life {
    std::uint64_t held_until_ns = 0;
    std::deque<std::function<void()>> waiting;
  };
  void go_on_later();

  VirtualClock& clock_;
  const std::uint32_t machine_;
  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

struct Packet {
  std::variant<ControlMessage, DataMessage> message;
  BufferRef shared;  // the payload, where it lies in a server's buffers; or
  std::shared_ptr<const std::vector<std::byte>> copied;
  // Between processes that share memory: place.bytes != 0: the payload is whatever lies at `told` when it is looked at,
  // and `copied` what lay there.
  PayloadPlace place{};
  std::span<const std::byte> told{};
  // A worker's payload lies in its memory: the receiver reads its content at that time, and `copied` is what was sent.
  std::span<const std::byte> lent{};
  std::shared_ptr<const void> lender{};
  std::span<const std::byte> payload() const {
    if (place.bytes != 0) return told;
    return shared ? shared.bytes() : copied ? std::span<const std::byte>(*copied) : std::span<const std::byte>();
  }
};

class Dealer;
class Listener;

// Faults in the messages of a listener's connections, worse than TCP's: each is a probability.
struct Disorder {
  double drops = 0.0;  // a peer takes nothing just then, and the sender learns it
  double loses = 0.0;
  double repeats = 0.0;
  double overtakes = 0.0;  // a message comes before others that were sent earlier
};

struct Connection {
  struct Way {
    std::deque<Packet> under_way;
    std::uint64_t last_ns = 0;  // when the last of them arrives
  };
  PeerId peer;
  Dealer* dealer = nullptr;  // null: that side is gone
  Listener* listener = nullptr;
  std::uint32_t from = 0, to = 0;  // machines
  bool broken = false;
  bool dead = false;  // what is sent vanishes
  Disorder disorder;
  Way up, down;
};

class Wires {
 public:
  Wires(VirtualClock& clock, std::uint64_t seed) : clock_(clock), random_(seed) {}

  // These machines and all others do not hear each other until then.
  void cut_off(std::set<std::uint32_t> machines, std::uint64_t until_ns);
  bool cut(std::uint32_t a, std::uint32_t b) const;
  // One connection that is there, if any is. half_open_some(): nothing that is sent in it arrives any more, and until
  // then both ends do not know, or the listener alone does not.
  void break_some();
  void half_open_some(std::uint64_t for_ns);
  std::uint64_t packets() const { return packets_; }

 private:
  friend class Dealer;
  friend class Listener;
  std::uint64_t delay();
  bool happens(double probability);
  bool transmit(const std::shared_ptr<Connection>& connection, bool up, Packet packet, std::size_t high_water);
  void arrive(const std::shared_ptr<Connection>& connection, bool up);
  std::shared_ptr<Connection> any_whole();
  void break_off(const std::shared_ptr<Connection>& connection);
  static void let_dealer_know(Random& random, const std::shared_ptr<Connection>& connection);

  VirtualClock& clock_;
  Random random_;
  std::map<std::string, Listener*> listeners_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::set<std::uint32_t> island_;
  std::uint64_t island_until_ns_ = 0;
  std::uint64_t last_peer_ = 1u << 20;
  std::uint64_t packets_ = 0;
};

// A ROUTER socket.
class Listener {
 public:
  using Receive = std::function<void(PeerId, Packet&)>;
  Listener(Wires& wires, Process& owner, std::string address, const Disorder& disorder, Receive receive);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  bool send(PeerId to, Packet packet);

 private:
  friend class Dealer;
  friend class Wires;
  Wires& wires_;
  Process& owner_;
  const std::string address_;
  const Disorder disorder_;
  const Receive receive_;
  std::map<PeerId, std::shared_ptr<Connection>> peers_;
};

// A DEALER socket. immediate: nothing waits for a connection that is not there.
class Dealer {
 public:
  static constexpr std::size_t kHighWater = 1000;
  using Receive = std::function<void(Packet&)>;
  Dealer(Wires& wires, Process& owner, std::string address, bool immediate, Receive receive);
  ~Dealer();
  Dealer(const Dealer&) = delete;
  Dealer& operator=(const Dealer&) = delete;
  bool send(Packet packet);
  bool connected() const { return connection_ != nullptr; }
  std::size_t waiting() const { return waiting_.size(); }

 private:
  friend class Wires;
  friend class Listener;
  void connect_after(std::uint64_t delay_ns);
  void connect();

  Wires& wires_;
  Process& owner_;
  const std::string address_;
  const bool immediate_;
  const Receive receive_;
  std::shared_ptr<Connection> connection_;
  std::deque<Packet> waiting_;
  std::uint64_t backoff_ns_ = 0;
  const std::shared_ptr<char> life_ = std::make_shared<char>();  // a socket may be closed before its process ends
};

}  // namespace tributary::sim
