#include "server/coordinator/orders/checkpoint_schedule.h"

#include <algorithm>
#include <utility>

namespace tributary {

void CheckpointSchedule::runs(const CheckpointConfig& config, std::uint64_t now_ms) {
  if (!std::exchange(trained_, true)) next_ms_ = now_ms + config.every_s * 1000ull;
}

bool CheckpointSchedule::due(const CheckpointConfig& config, Round newest, bool stopped, std::uint64_t now_ms) const {
  if (!lacks(config, newest) || order_) return false;
  if (newest == failed_) return now_ms >= retry_ms_;
  return stopped || (config.every_s != 0 && now_ms >= next_ms_);
}

void CheckpointSchedule::ordered(const CheckpointConfig& config, std::uint64_t order, Round newest,
                                 std::uint64_t now_ms) {
  order_ = {order, newest};
  next_ms_ = now_ms + config.every_s * 1000ull;
}

void CheckpointSchedule::look(const std::optional<CheckpointStatus>& status, std::uint64_t now_ms) {
  if (!order_ || (status && !status->over())) return;
  const Round round = std::exchange(order_, std::nullopt)->round;
  if (status && status->step == CheckpointStep::kDone) {
    saved_ = status->round;
    failed_ = {};
    newest_ = status->path;
    failure_.clear();
    return;
  }
  pause_ms_ = failed_ == round && pause_ms_ != 0 ? std::min(2 * pause_ms_, kLastRetryMs) : kFirstRetryMs;
  failed_ = round;
  failure_ = status ? status->message : "nobody knows how it ended";
  retry_ms_ = now_ms + pause_ms_;
  next_ms_ = std::min(next_ms_, retry_ms_);  // a newer round, which may be there then
}

std::optional<std::uint64_t> CheckpointSchedule::under_way() const {
  return order_ ? std::optional(order_->id) : std::nullopt;
}

}  // namespace tributary
