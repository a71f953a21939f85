#include "worker/node/kept_parameters.h"

#include <utility>

namespace tributary {

void KeptParameters::keep(const std::string& job, std::shared_ptr<const NodeRegion> region) {
  kept_[job] = {std::move(region), now_ms_};
}

std::shared_ptr<const NodeRegion> KeptParameters::of(const std::string& job, const Layout& layout) const {
  const auto kept = kept_.find(job);
  if (kept == kept_.end()) return nullptr;
  const Layout& theirs = *kept->second.region->layout;
  const bool fits = theirs.hash() == layout.hash() && theirs.flat_elements() == layout.flat_elements() &&
                    theirs.owners() == layout.owners();
  return fits ? kept->second.region : nullptr;
}

bool KeptParameters::give_way() {
  return std::erase_if(kept_, [](const auto& entry) { return entry.second.region.use_count() == 1; }) != 0;
}

std::uint64_t KeptParameters::spare() const {
  std::uint64_t bytes = 0;
  for (const auto& [job, kept] : kept_) {
    if (kept.region.use_count() == 1) bytes += NodeRegion::bytes_needed(*kept.region->layout);
  }
  return bytes;
}

void KeptParameters::in_use(const std::string& job, std::uint64_t now_ms) {
  if (const auto kept = kept_.find(job); kept != kept_.end()) kept->second.seen_ms = now_ms;
}

void KeptParameters::tick(std::uint64_t now_ms) {
  now_ms_ = now_ms;
  std::erase_if(kept_, [&](const auto& entry) { return now_ms > entry.second.seen_ms + kKeepMs; });
}

}  // namespace tributary
