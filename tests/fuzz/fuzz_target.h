// A fuzz target: fuzz_NAME.cc, which gives bytes to one parser of what comes from others, and says what must hold
// whatever they are. It has the inputs to begin with, made by the program's own encoders.
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
  // Inputs that the parser accepts, most of them: mutations of what is refused at once find little. And what was found
  // once.
  std::vector<Bytes> (*seeds)();
  void (*run)(std::span<const std::byte> bytes);
};

// The target that a command line names first, and takes out of it. None: it says which there are.
const Target* named_target(int& argc, char** argv);

// A finding if not.
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

// The input as a sequence of choices. When it is over, every further one is 0.
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
