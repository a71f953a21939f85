#include "server/coordinator/cluster/connection_book.h"

#include <algorithm>
#include <utility>

#include "common/base/quantity.h"

namespace tributary {

bool ConnectionBook::newest_first(const Entry* a, const Entry* b) {
  return a->second.order > b->second.order;
}

void ConnectionBook::accepted(int id, std::string address, std::uint64_t now_ms) {
  Connection connection;
  connection.address = std::move(address);
  connection.order = ++accepted_;
  connection.heard_ms = now_ms;
  connections_.insert_or_assign(id, std::move(connection));
}

void ConnectionBook::brought(int id, std::string key, std::uint64_t now_ms) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  at->second.newcomer = false;
  at->second.key = std::move(key);
  at->second.heard_ms = now_ms;
}

void ConnectionBook::holds(int id, std::uint64_t bytes) {
  const auto at = connections_.find(id);
  if (at != connections_.end()) at->second.held = bytes;
}

std::uint64_t ConnectionBook::held_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [id, connection] : connections_) sum += connection.cut ? 0 : connection.held;
  return sum;
}

std::vector<int> ConnectionBook::ids() const {
  std::vector<int> ids;
  for (const auto& [id, connection] : connections_) {
    if (!connection.cut) ids.push_back(id);
  }
  return ids;
}

std::vector<ConnectionBook::Cut> ConnectionBook::beyond() {
  std::vector<Cut> cuts;
  too_many_newcomers(cuts);
  too_many_of_a_key(cuts);
  too_many_bytes(cuts);
  return cuts;
}

void ConnectionBook::cut(std::vector<Cut>& cuts, Entry& entry, const std::string& why) {
  entry.second.cut = true;
  cuts.push_back({entry.first, "a connection from " + entry.second.address + ": " + why});
}

void ConnectionBook::too_many_newcomers(std::vector<Cut>& cuts) {
  std::map<std::string, std::vector<Entry*>> newcomers;  // by address
  std::size_t count = 0;
  for (Entry& entry : connections_) {
    if (!entry.second.newcomer || entry.second.cut) continue;
    newcomers[entry.second.address].push_back(&entry);
    ++count;
  }
  const std::size_t limit = limits_.newcomers();
  if (count <= limit) return;
  for (auto& [address, theirs] : newcomers) std::ranges::sort(theirs, newest_first);
  for (; count > limit; --count) {
    const auto most = std::ranges::max_element(newcomers, {}, [](const auto& entry) { return entry.second.size(); });
    cut(cuts, *most->second.back(),
        "more than " + std::to_string(limit) + " connections have brought no whole message yet");
    most->second.pop_back();
  }
}

void ConnectionBook::too_many_of_a_key(std::vector<Cut>& cuts) {
  std::map<std::string_view, std::vector<Entry*>> of_key;
  for (Entry& entry : connections_) {
    if (!entry.second.newcomer && !entry.second.cut) of_key[entry.second.key].push_back(&entry);
  }
  for (auto& [key, theirs] : of_key) {
    const std::string name(key);
    const std::size_t limit = limits_.of_key(name);
    if (theirs.size() <= limit) continue;
    std::ranges::sort(theirs, newest_first);
    for (std::size_t i = 0; i < theirs.size() - limit; ++i) {
      cut(cuts, *theirs[i], "the key " + name + " has more than " + std::to_string(limit) + " connections");
    }
  }
}

void ConnectionBook::too_many_bytes(std::vector<Cut>& cuts) {
  std::uint64_t held = held_bytes();
  const std::uint64_t limit = limits_.held_bytes();
  if (held <= limit) return;
  std::vector<Entry*> holders;
  for (Entry& entry : connections_) {
    if (entry.second.held != 0 && !entry.second.cut) holders.push_back(&entry);
  }
  const auto first = [](const Entry* a, const Entry* b) {
    return std::pair(a->second.heard_ms, a->second.order) < std::pair(b->second.heard_ms, b->second.order);
  };
  std::ranges::sort(holders, first);
  for (Entry* entry : holders) {
    if (held <= limit) return;
    held -= entry->second.held;
    cut(cuts, *entry,
        memory_in_words(entry->second.held) +
            " of messages that have not ended, and all connections together have more than " + memory_in_words(limit));
  }
}

}  // namespace tributary
