// ConnectionBook: the connections of a listening socket, and the choice of those to cut, so that all together stay
// within bounds (docs/bounds.md). Pure: events come in, with the time; the shell is Admission.
//
// ZeroMQ bounds one message and one handshake, and no number of them. Three bounds are added here:
//
//   newcomers   connections over which no whole message has come, handshakes among them. Beyond the bound the address
//               with most of them loses its oldest one: a handshake takes milliseconds, and who waits longer is in no
//               hurry.
//   of a key    connections whose messages came with that key. Beyond the bound the newest goes: who was there first
//               is hardly the one that asks for more.
//   held        bytes that have come, and not yet as a whole message. Beyond the bound the connection goes that has
//               brought no whole message for longest: half a message stands between it and the next one.
//
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tributary {

struct ConnectionLimits {
  std::function<std::size_t()> newcomers = [] { return 1024; };
  std::function<std::size_t(const std::string& key)> of_key = [](const std::string&) { return 64; };
  std::function<std::uint64_t()> held_bytes = [] { return std::uint64_t{256} << 20; };
};

class ConnectionBook {
 public:
  explicit ConnectionBook(ConnectionLimits limits) : limits_(std::move(limits)) {}

  // id: its descriptor. address: the peer's, without a port.
  void accepted(int id, std::string address, std::uint64_t now_ms);
  void ended(int id) { connections_.erase(id); }
  // Records that a whole message has come since the last call. key: the last one's.
  void brought(int id, std::string key, std::uint64_t now_ms);
  void holds(int id, std::uint64_t bytes);

  struct Cut {
    int id = -1;
    std::string why;  // in words for the log
  };
  // Removes and returns the connections that are beyond the bounds now.
  std::vector<Cut> beyond();

  std::size_t size() const { return connections_.size(); }
  std::uint64_t held_bytes() const;
  std::vector<int> ids() const;  // without those that were cut

 private:
  struct Connection {
    std::string address, key;
    std::uint64_t order = 0;     // place among all that were accepted
    std::uint64_t heard_ms = 0;  // when it was accepted, or brought the last whole message
    std::uint64_t held = 0;
    bool newcomer = true, cut = false;
  };
  using Entry = std::map<int, Connection>::value_type;

  static bool newest_first(const Entry* a, const Entry* b);
  void cut(std::vector<Cut>& cuts, Entry& entry, const std::string& why);
  void too_many_newcomers(std::vector<Cut>& cuts);
  void too_many_of_a_key(std::vector<Cut>& cuts);
  void too_many_bytes(std::vector<Cut>& cuts);

  const ConnectionLimits limits_;
  std::map<int, Connection> connections_;
  std::uint64_t accepted_ = 0;
};

}  // namespace tributary
