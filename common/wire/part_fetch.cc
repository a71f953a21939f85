#include "common/wire/part_fetch.h"

#include <algorithm>

namespace tributary {

PartFetch::PartFetch(JobId job, const LargePart& large, std::uint64_t now_ms)
    : job_(job), large_(large), asked_ms_(now_ms), patience_(kPatienceMs, now_ms) {}

std::vector<WantPart> PartFetch::wants(std::uint64_t now_ms) {
  if (now_ms >= asked_ms_ + kRepeatMs) asked_ = taken_;  // a request, or its answer, is lost
  std::vector<WantPart> wants;
  while (asked_ < std::min(large_.bytes, taken_ + kWindow * kPartBytes)) {
    wants.push_back({job_, large_, asked_});
    asked_ = std::min<std::uint64_t>(large_.bytes, asked_ + kPartBytes);
    asked_ms_ = now_ms;
  }
  return wants;
}

bool PartFetch::take(const StatePart& part, std::uint64_t now_ms) {
  if (part.part.large != large_ || part.part.offset != taken_ || part.data.empty() || ended()) return false;
  checksum_.add(part.data.data(), part.data.size());
  taken_ += part.data.size();
  asked_ms_ = now_ms;
  return true;
}

bool PartFetch::right() const {
  const auto [high, low] = checksum_.value();
  return high == large_.high && low == large_.low;
}

}  // namespace tributary
