// Sets of counters. A set is a struct template over its cell with one list next to its members,
//   static void visit(auto&& visit, auto&... sets)  ->  visit(CountField, sets.member...) for every counter,
// which adding, publishing, /status and /metrics walk: a counter is its member and its line in the list.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tributary {

// A cell that others read while it is counted in: relaxed stores, no lock and no locked instruction. One writer; any
// number of readers, who may see each value a little late.
class LaneCounter {
 public:
  void add(std::uint64_t n = 1) { set(value() + n); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// How the values of several parts (jobs, lanes) are combined.
enum class CountKind : std::uint8_t {
  kTotal,  // only grows; parts add up
  kNow,    // parts add up
  kMost,   // the highest of the parts that are open: that of a closed job is forgotten
  kLeast,  // the lowest of those that know it (0: not known)
};

struct CountField {
  CountKind kind;
  const char* key;  // in /status; "a/b": b in the object a
  const char* help;
  double unit = 0.0;             // 0: shown as a whole number; else: the factor of the shown value
  const char* metric = nullptr;  // in /metrics, without prefix and "_total"; null: as the key

  bool grows() const { return kind == CountKind::kTotal; }
  // Returns the name in Prometheus.
  std::string metric_name(const std::string& prefix) const {
    std::string name = prefix + (metric ? metric : key) + (grows() ? "_total" : "");
    std::ranges::replace(name, '/', '_');
    return name;
  }
  double shown(std::uint64_t value) const { return unit == 0.0 ? double(value) : double(value) * unit; }
};

constexpr std::uint64_t count_of(std::uint64_t value) {
  return value;
}
inline std::uint64_t count_of(const LaneCounter& cell) {
  return cell.value();
}

// Total: of plain cells.
void add_counts(auto& total, const auto& part) {
  total.visit(
      [](const CountField& field, std::uint64_t& sum, const auto& cell) {
        const std::uint64_t value = count_of(cell);
        if (field.kind == CountKind::kMost) {
          sum = std::max(sum, value);
        } else if (field.kind == CountKind::kLeast) {
          if (value != 0) sum = sum == 0 ? value : std::min(sum, value);
        } else {
          sum += value;
        }
      },
      total, part);
}

// Keeps a finished part's totals and clears its other counters.
void keep_totals_only(auto& counts) {
  counts.visit([](const CountField& field, std::uint64_t& value) { value = field.grows() ? value : 0; }, counts);
}

// Plain: the set that both have in common.
template <class Plain>
void publish_counts(auto& cells, const Plain& counts) {
  counts.visit([](const CountField&, LaneCounter& cell, std::uint64_t value) { cell.set(value); }, cells, counts);
}

// out: a JSON object.
template <class Json>
void counts_to_json(Json& out, const auto& counts) {
  counts.visit(
      [&](const CountField& field, const auto& cell) {
        Json& at = out[typename Json::json_pointer("/" + std::string(field.key))];
        if (field.unit == 0.0) {
          at = count_of(cell);
        } else {
          at = field.shown(count_of(cell));
        }
      },
      counts);
}

// The value in the list's line `index`.
std::uint64_t count_at(const auto& counts, std::size_t index) {
  std::uint64_t found = 0;
  counts.visit([&, i = std::size_t{0}](const CountField&,
                                       const auto& cell) mutable { found = i++ == index ? count_of(cell) : found; },
               counts);
  return found;
}

}  // namespace tributary
