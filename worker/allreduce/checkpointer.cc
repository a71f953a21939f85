#include "worker/allreduce/checkpointer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"

namespace tributary {
namespace {

constexpr int kNiceness = 10;

}  // namespace

Checkpointer::Checkpointer(std::string store_path, const JobConfig& job, std::shared_ptr<const Layout> layout,
                           Round start, ReplicaState& state, Logger logger)
    : job_name_(job.name),
      layout_(std::move(layout)),
      checkpoints_(std::move(store_path), job, *layout_),
      config_(job.snapshot),
      state_(state),
      logger_(std::move(logger)),
      copied_steps_(layout_->chunks(), 0),
      newest_(start),
      last_ms_(steady_ms()) {
  thread_ = start_thread("checkpointer", logger_, [this] { run(); });
}

Checkpointer::~Checkpointer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Checkpointer::due(Round round, std::uint64_t now_ms) const {
  if (owed_) return true;
  if (config_.every_rounds != 0 && round.value % config_.every_rounds == 0) return true;
  return config_.every_s != 0 && now_ms - last_ms_ >= config_.every_s * 1000ull;
}

bool Checkpointer::reaches(Round round) {
  const std::lock_guard lock(mutex_);
  if (round.value > newest_.value) {
    // The first chunk at this round: none is beyond it, so all of them can still be copied at it.
    newest_ = round;
    const std::uint64_t now = steady_ms();
    const bool is_due = due(round, now);
    owed_ = is_due && busy_;
    if (is_due && !busy_) {
      if (copies_.empty()) {
        for (std::size_t i = 0; i < 1 + state_.slots().size(); ++i) copies_.emplace_back(layout_->flat_elements(), i);
      }
      busy_ = true;
      capturing_ = round;
      left_ = layout_->chunks();
      last_ms_ = now;
    }
  }
  return round == capturing_;
}

void Checkpointer::capture(ChunkIndex chunk, const float* parameters, std::span<const float* const> slots,
                           std::uint64_t step) {
  const ChunkRange range = layout_->chunk(chunk);
  const std::size_t bytes = range.elements * sizeof(float);
  std::memcpy(copies_[0].data() + range.begin, parameters, bytes);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    std::memcpy(copies_[1 + slot].data() + range.begin, slots[slot], bytes);
  }
  copied_steps_[chunk.value] = step;
  const std::lock_guard lock(mutex_);
  TRIB_ASSERT(left_ > 0);
  if (--left_ == 0) changed_.notify_all();
}

Round Checkpointer::written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

Status Checkpointer::write(Round round, const ReplicaArrays& state) {
  const std::uint64_t began = steady_ms();
  Status written = checkpoints_.write(round, state);
  if (written) {
    logger_->info("job '{}': checkpoint of round {} written in {} ms", job_name_, round.value, steady_ms() - began);
  } else {
    logger_->error("job '{}': no checkpoint of round {}: {}", job_name_, round.value, written.error().message);
  }
  return written;
}

void Checkpointer::run() {
  // Linux: of this thread alone. Failing to be nice is no reason not to write.
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceness) != 0)
    logger_->log(Log::Level::debug, "the checkpoint writer keeps its priority: {}", std::strerror(errno));
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (capturing_.value != 0 && left_ == 0); });
    if (capturing_.value == 0 || left_ != 0) return;  // an incomplete copy is not written
    const Round round = capturing_;
    lock.unlock();
    std::vector<float*> slots;
    for (std::size_t i = 1; i < copies_.size(); ++i) slots.push_back(copies_[i].data());
    const bool written = write(round, {copies_[0].data(), slots, copied_steps_}).has_value();
    lock.lock();
    if (written) written_ = round;
    capturing_ = Round();
    busy_ = false;
    changed_.notify_all();
  }
}

Status Checkpointer::finish(Round round) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return capturing_.value == 0 || left_ != 0; });  // what can be written
    if (written_ == round) return {};
  }
  Status written = write(round, {state_.parameters(), state_.slots(), state_.steps()});
  if (!written) return written;
  const std::lock_guard lock(mutex_);
  written_ = round;
  return {};
}

}  // namespace tributary
