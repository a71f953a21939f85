#include "server/coordinator/cluster/stored_fetch.h"

#include <utility>

namespace tributary {

StoredFetch::StoredFetch(LargePartStore& store, JobId job, const LargePart& large, Ports ports, std::uint64_t now_ms)
    : store_(store), ports_(std::move(ports)), parts_(job, large, now_ms) {}

void StoredFetch::begin(std::uint64_t now_ms) {
  const auto begin = [&store = store_, job = parts_.job(), large = parts_.large()] { return store.begin(job, large); };
  order(begin, false, now_ms);
}

void StoredFetch::request(std::uint64_t now_ms) {
  for (const WantPart& want : parts_.wants(now_ms)) ports_.request(want);
}

void StoredFetch::order(Work work, bool last, std::uint64_t now_ms) {
  ++orders_;
  parts_.comes(now_ms);
  const auto worked = [this, last, alive = std::weak_ptr<char>(alive_)](const Status& done, std::uint64_t now) {
    if (alive.expired()) return;
    --orders_;
    parts_.comes(now);                // the disk's time is not its source's
    const auto ended = ports_.ended;  // which may let go of this object
    if (!done) return ended(End::kStoreFailed, done, now);
    if (last) return ended(End::kComplete, {}, now);
    if (orders_ != 0) return;
    if (!parts_.ended()) return request(now);
    if (!parts_.right()) return ended(End::kWrongChecksum, {}, now);
    const auto finish = [&store = store_, job = parts_.job(), large = parts_.large()] {
      return store.finish(job, large);
    };
    order(finish, true, now);
  };
  ports_.disk(std::move(work), worked);
}

std::size_t StoredFetch::take(const StatePart& m, std::uint64_t now_ms) {
  if (!parts_.take(m, now_ms)) return 0;
  const auto add = [&store = store_, job = parts_.job(), large = parts_.large(), offset = m.part.offset,
                    data = m.data] { return store.add(job, large, offset, data); };
  order(add, false, now_ms);
  return m.data.size();
}

bool StoredFetch::tick(std::uint64_t now_ms) {
  if (orders_ != 0) return false;  // the disk's turn
  if (parts_.given_up(now_ms)) return true;
  request(now_ms);
  return false;
}

}  // namespace tributary
