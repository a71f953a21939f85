#include "tools/cluster/line_follower.h"

#include <fstream>
#include <utility>

#include "tools/cluster/process.h"

namespace tributary {

LineFollower::LineFollower(std::string file) : file_(std::move(file)), at_(file_bytes(file_)) {}

void LineFollower::read(const std::function<void(std::string_view)>& take, bool rest) {
  std::ifstream in(file_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(at_));
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
    const auto got = static_cast<std::size_t>(in.gcount());
    at_ += got;
    begun_.append(buffer, got);
    std::size_t from = 0;
    for (std::size_t end = 0; (end = begun_.find('\n', from)) != std::string::npos; from = end + 1) {
      take(std::string_view(begun_).substr(from, end - from));
    }
    begun_.erase(0, from);
  }
  if (rest && !begun_.empty()) take(std::exchange(begun_, {}));
}

}  // namespace tributary
