// LineFollower: reads the lines that are appended to a file. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tributary {

class LineFollower {
 public:
  // Starts at the file's present end; the file need not exist yet.
  explicit LineFollower(std::string file);
  // Gives every complete line to `take`, without its newline; with `rest`, for the last call, also an incomplete one.
  void read(const std::function<void(std::string_view line)>& take, bool rest = false);

 private:
  std::string file_;
  std::uint64_t at_;
  std::string begun_;  // a line that is not complete
};

}  // namespace tributary
