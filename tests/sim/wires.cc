#include "tests/sim/wires.h"

#include <algorithm>
#include <utility>

namespace tributary::sim {
namespace {

constexpr std::uint64_t kMinDelayNs = 50'000, kMaxDelayNs = 1'000'000;
constexpr double kStraggle = 0.01;
constexpr std::uint64_t kCutRetryNs = 20'000'000;
constexpr std::uint64_t kFirstReconnectNs = 50'000'000, kMaxReconnectNs = 1'000'000'000;

}  // namespace

void Process::after(std::uint64_t delay_ns, std::function<void()> action) {
  clock_.after(delay_ns, [this, weak = std::weak_ptr(life_), action = std::move(action)]() mutable {
    const auto life = weak.lock();
    if (!life) return;
    if (life->held_until_ns <= clock_.now_ns() && life->waiting.empty()) return action();
    life->waiting.push_back(std::move(action));
    if (life->waiting.size() == 1) go_on_later();
  });
}

void Process::go_on_later() {
  clock_.after(life_->held_until_ns - clock_.now_ns(), [this, weak = std::weak_ptr(life_)] {
    while (const auto life = weak.lock()) {  // an action may end the process
      if (life->waiting.empty()) return;
      if (life->held_until_ns > clock_.now_ns()) return go_on_later();
      const std::function<void()> next = std::move(life->waiting.front());
      life->waiting.pop_front();
      next();
    }
  });
}

void Wires::cut_off(std::set<std::uint32_t> machines, std::uint64_t until_ns) {
  island_ = std::move(machines);
  island_until_ns_ = until_ns;
}

bool Wires::cut(std::uint32_t a, std::uint32_t b) const {
  return clock_.now_ns() < island_until_ns_ && island_.contains(a) != island_.contains(b);
}

std::uint64_t Wires::delay() {
  const std::uint64_t usual = random_.between(kMinDelayNs, kMaxDelayNs);
  return random_.chance(kStraggle) ? usual * random_.between(2, 50) : usual;
}

std::shared_ptr<Connection> Wires::any_whole() {
  // Broken ones stay as long as something of them is to arrive: whom it is for may end before that.
  std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
  std::vector<std::shared_ptr<Connection>> whole;
  for (const auto& weak : connections_) {
    if (auto connection = weak.lock(); connection && !connection->broken) whole.push_back(std::move(connection));
  }
  return whole.empty() ? nullptr : whole[random_.below(whole.size())];
}

void Wires::break_some() {
  if (const auto connection = any_whole()) break_off(connection);
}

void Wires::half_open_some(std::uint64_t for_ns) {
  const auto connection = any_whole();
  if (!connection) return;
  connection->dead = true;
  connection->up.under_way.clear();
  connection->down.under_way.clear();
  if (random_.chance(0.5)) let_dealer_know(random_, connection);
  clock_.after(for_ns, [this, weak = std::weak_ptr(connection)] {
    if (const auto whole = weak.lock()) break_off(whole);
  });
}

// Nothing is drawn for what cannot happen: seeds without it are what they were.
bool Wires::happens(double probability) {
  return probability > 0.0 && random_.chance(probability);
}

bool Wires::transmit(const std::shared_ptr<Connection>& connection, bool up, Packet packet, std::size_t high_water) {
  Connection::Way& way = up ? connection->up : connection->down;
  if (way.under_way.size() >= high_water) return false;
  ++packets_;
  if (connection->dead) return true;
  const Disorder& disorder = connection->disorder;
  if (happens(disorder.loses)) return true;
  const int copies = happens(disorder.repeats) ? 2 : 1;
  Process& receiver = up ? connection->listener->owner_ : connection->dealer->owner_;
  for (int i = 0; i < copies; ++i) {
    way.under_way.push_back(packet);
    way.last_ns = std::max(way.last_ns + 1, clock_.now_ns() + delay());
    receiver.after(way.last_ns - clock_.now_ns(), [this, connection, up] { arrive(connection, up); });
  }
  return true;
}

void Wires::arrive(const std::shared_ptr<Connection>& connection, bool up) {
  Connection::Way& way = up ? connection->up : connection->down;
  Listener* listener = connection->listener;
  Dealer* dealer = connection->dealer;
  if (way.under_way.empty() || (up ? listener == nullptr : dealer == nullptr)) return;
  if (cut(connection->from, connection->to)) {
    Process& receiver = up ? listener->owner_ : dealer->owner_;
    return receiver.after(kCutRetryNs, [this, connection, up] { arrive(connection, up); });
  }
  const auto next =
      way.under_way.begin() +
      static_cast<std::ptrdiff_t>(happens(connection->disorder.overtakes) ? random_.below(way.under_way.size()) : 0);
  Packet packet = std::move(*next);
  way.under_way.erase(next);
  if (up) {
    listener->receive_(connection->peer, packet);
  } else {
    dealer->receive_(packet);
  }
}

void Wires::break_off(const std::shared_ptr<Connection>& connection) {
  if (std::exchange(connection->broken, true)) return;
  for (Connection::Way* way : {&connection->up, &connection->down}) {
    way->under_way.resize(random_.below(way->under_way.size() + 1));
  }
  if (connection->listener) connection->listener->peers_.erase(connection->peer);
  let_dealer_know(random_, connection);
}

// It connects again.
void Wires::let_dealer_know(Random& random, const std::shared_ptr<Connection>& connection) {
  Dealer* dealer = connection->dealer;
  if (!dealer || dealer->connection_ != connection) return;
  dealer->connection_.reset();
  dealer->backoff_ns_ = kFirstReconnectNs;
  dealer->connect_after(random.between(1'000'000, kFirstReconnectNs));
}

Listener::Listener(Wires& wires, Process& owner, std::string address, const Disorder& disorder, Receive receive)
    : wires_(wires), owner_(owner), address_(std::move(address)), disorder_(disorder), receive_(std::move(receive)) {
  wires_.listeners_[address_] = this;
}

Listener::~Listener() {
  if (wires_.listeners_[address_] == this) wires_.listeners_.erase(address_);
  while (!peers_.empty()) {
    const std::shared_ptr<Connection> connection = peers_.begin()->second;
    wires_.break_off(connection);
    connection->up.under_way.clear();
    connection->listener = nullptr;
  }
  for (const auto& weak : wires_.connections_) {  // broken ones, of which something was still to arrive
    if (const auto connection = weak.lock(); connection && connection->listener == this) connection->listener = nullptr;
  }
}

bool Listener::send(PeerId to, Packet packet) {
  const auto peer = peers_.find(to);
  if (peer == peers_.end() || wires_.happens(disorder_.drops)) return false;
  return wires_.transmit(peer->second, false, std::move(packet), Dealer::kHighWater);
}

Dealer::Dealer(Wires& wires, Process& owner, std::string address, bool immediate, Receive receive)
    : wires_(wires), owner_(owner), address_(std::move(address)), immediate_(immediate), receive_(std::move(receive)) {
  backoff_ns_ = kFirstReconnectNs;
  connect_after(wires_.delay());
}

Dealer::~Dealer() {
  for (const auto& weak : wires_.connections_) {
    const auto connection = weak.lock();
    if (!connection || connection->dealer != this) continue;
    connection->dealer = nullptr;
    connection->down.under_way.clear();
    wires_.break_off(connection);
  }
}

void Dealer::connect_after(std::uint64_t delay_ns) {
  owner_.after(delay_ns, [this, life = std::weak_ptr(life_)] {
    if (life.lock()) connect();
  });
}

void Dealer::connect() {
  if (connection_) return;
  const auto found = wires_.listeners_.find(address_);
  if (found == wires_.listeners_.end() || wires_.cut(owner_.machine(), found->second->owner_.machine())) {
    backoff_ns_ = std::min(backoff_ns_ * 2, kMaxReconnectNs);
    return connect_after(backoff_ns_);
  }
  connection_ = std::make_shared<Connection>();
  connection_->peer = PeerId(++wires_.last_peer_);
  connection_->dealer = this;
  connection_->listener = found->second;
  connection_->from = owner_.machine();
  connection_->to = found->second->owner_.machine();
  connection_->disorder = found->second->disorder_;
  found->second->peers_[connection_->peer] = connection_;
  wires_.connections_.push_back(connection_);
  while (!waiting_.empty() && connection_) {
    wires_.transmit(connection_, true, std::move(waiting_.front()), kHighWater);
    waiting_.pop_front();
  }
}

bool Dealer::send(Packet packet) {
  if (connection_) return wires_.transmit(connection_, true, std::move(packet), kHighWater);
  if (immediate_ || waiting_.size() >= kHighWater) return false;
  waiting_.push_back(std::move(packet));
  return true;
}

}  // namespace tributary::sim
