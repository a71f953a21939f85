// LineFollower: what is appended to a file, line by line. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tributary {

class LineFollower {
 public:
  // From the file's present end; it need not exist yet.
  explicit LineFollower(std::string file);
  // Gives every line that is complete to `take`, without its newline; at the end of all things (`rest`) also what has
  // none.
  void read(const std::function<void(std::string_view line)>& take, bool rest = false);

 private:
  std::string file_;
  std::uint64_t at_;
  std::string begun_;  // a line that is not complete
};

}  // namespace tributary
