// A fuzz target: fuzz_NAME.cc, which gives bytes to one parser of untrusted input, and checks invariants that hold for
// any bytes. Its first inputs are made by the program's own encoders.
//
// corpus_main.cc drives targets in every build, libFuzzer in the preset `fuzz` (scripts/fuzz.sh; docs/tests.md).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tributary::fuzz {

using Bytes = std::vector<std::byte>;

struct Target {
  std::string_view name;
  // Inputs that the parser mostly accepts, because mutations of refused inputs find little; and former findings.
  std::vector<Bytes> (*seeds)();
  void (*run)(std::span<const std::byte> bytes);
};

// Returns the target that the command line names first, and removes its name. None: prints the list of targets.
const Target* named_target(int& argc, char** argv);

// Reports a finding if `holds` is false.
inline void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The input as a sequence of choices. After its end every further choice is 0.
class Choices {
 public:
  explicit Choices(std::span<const std::byte> bytes) : left_(bytes) {}
  bool over() const { return left_.empty(); }
  template <class T = std::uint8_t>
  T number() {
    T value{};
    std::ranges::copy(take(sizeof value), std::as_writable_bytes(std::span(&value, 1)).begin());
    return value;
  }
  bool flag() { return number() % 2 != 0; }
  std::span<const std::byte> take(std::size_t most) {
    const std::span<const std::byte> taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return take(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

}  // namespace tributary::fuzz
