// Lane: snapshots, and the memory that their copy-on-write needs.
#include <algorithm>
#include <memory>

#include "common/clock.h"
#include "server/lane.h"

namespace tributary {

void Lane::prepare_snapshot(JobId job, ViewId view) {
  post([this, job, view] {
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.core->job().view != view) return;
    Job& entry = found->second;
    entry.preparer.end();
    entry.trim_at_ms = 0;
    entry.gauges->prepared.store(false, std::memory_order_relaxed);
    entry.preparer.begin(*entry.pool, entry.steady_blocks,
                         [gauges = entry.gauges] { gauges->prepared.store(true, std::memory_order_relaxed); });
  });
}

void Lane::snapshot_at(JobId job, ViewId view, Round round) {
  post([this, job, view, round] {
    const auto found = jobs_.find(job);
    const bool started =
        found != jobs_.end() && found->second.core->job().view == view && found->second.core->snapshot_at(round);
    if (started) {
      // Whatever is not there yet: the round is a little ahead.
      Job& entry = found->second;
      entry.trim_at_ms = 0;
      entry.preparer.begin(*entry.pool, entry.steady_blocks, [] {});
      entry.gauges->prepared.store(false, std::memory_order_relaxed);
    }
    listener_.lane_snapshot(options_.lane, job, view, round, started);
  });
}

void Lane::snapshot_written(JobId job) {
  post([this, job] {
    const auto found = jobs_.find(job);
    if (found == jobs_.end()) return;
    found->second.preparer.end();
    found->second.trim_at_ms = std::max<std::uint64_t>(steady_ms() + options_.idle_memory_ms, 1);
  });
}

bool Lane::trim_some(std::uint64_t now) {
  bool more = false;
  for (auto& [id, job] : jobs_) {
    if (job.trim_at_ms == 0 || now < job.trim_at_ms) continue;
    const std::size_t blocks = std::max<std::size_t>(kTrimBytes / job.pool->block_bytes(), 1);
    if (job.pool->trim(job.steady_blocks, blocks)) job.trim_at_ms = 0;
    more |= job.trim_at_ms != 0;
    dirty_ = true;
  }
  return more;
}

}  // namespace tributary
