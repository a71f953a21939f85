#include "worker/device/device_memory.h"

#include "common/base/round_up.h"

namespace tributary {
namespace {

// As cudaMalloc aligns: full-width accesses and coalesced lines for every part.
constexpr std::size_t kDeviceAlign = 256;

// Place of the answer in the area of a full chunk; a shorter chunk's area is as large.
std::size_t answer_offset(const DevicePlan& plan) {
  if (!plan.push->keeps_residual()) return 0;
  const std::size_t chunk = plan.chunk_elements();
  return round_up(residual_offset(plan.push->bytes(chunk)) + chunk * sizeof(float), kDeviceAlign);
}

std::size_t area_bytes(const DevicePlan& plan) {
  const std::size_t chunk = plan.chunk_elements();
  const std::size_t answer = std::max(chunk * sizeof(float), plan.pull->bytes(chunk));
  return round_up(std::max(answer_offset(plan) + answer, plan.push->bytes(chunk)), kDeviceAlign);
}

}  // namespace

DeviceMemory::DeviceMemory(DeviceApi& api, const DevicePlan& plan, std::uint32_t slots)
    : api_(api), plan_(plan), slot_count_(slots), blocks_(api) {}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::allocate(DeviceApi& api, const DevicePlan& plan,
                                                             std::uint32_t slots) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(api, plan, slots));
  if (Status done = memory->allocate_all(); !done) return tl::unexpected(done.error());
  return memory;
}

std::uint64_t DeviceMemory::pinned_bytes(const DevicePlan& plan) {
  return std::uint64_t{plan.groups()} * plan.width() * area_bytes(plan);
}

Status DeviceMemory::allocate_all() {
  slots_.resize(std::size_t{plan_.width()} * slot_count_);
  for (const std::uint32_t position : plan_.position_of_rank) {
    const auto block = take(position, array_bytes(plan_), "a rank's gradients");
    if (!block) return tl::unexpected(block.error());
    gradients_.push_back(static_cast<float*>(*block));
  }
  for (std::uint32_t position = 0; position < plan_.width(); ++position) {
    if (Status done = allocate_device(position); !done) return done;
  }
  return {};
}

Status DeviceMemory::allocate_device(std::uint32_t position) {
  const auto parameters = take(position, array_bytes(plan_), "the parameters");
  if (!parameters) return tl::unexpected(parameters.error());
  parameters_.push_back(static_cast<float*>(*parameters));

  const std::size_t chunk = plan_.chunk_elements();
  residuals_.push_back(nullptr);
  if (plan_.push->keeps_residual()) {
    const auto residual = take(position, 2 * plan_.groups() * chunk * sizeof(float), "the residuals");
    if (!residual) return tl::unexpected(residual.error());
    residuals_.back() = static_cast<float*>(*residual);
  }

  const std::size_t ranks = plan_.ranks_on(position).size();
  const bool encodes = plan_.push->id() != EncodingId::kFp32;
  // Inputs of an encode: the share, or the ranks' own gradients.
  const std::size_t inputs = plan_.collectives() ? 1 : ranks;
  const std::size_t sum =
      plan_.collectives() && ranks > 1 ? round_up(plan_.group_elements() * sizeof(float), kDeviceAlign) : 0;
  const std::size_t share =
      plan_.collectives() || (ranks > 1 && !encodes) ? round_up(chunk * sizeof(float), kDeviceAlign) : 0;
  const std::size_t frame = encodes ? round_up(plan_.push->bytes(chunk), kDeviceAlign) : 0;
  const std::size_t scratch =
      encodes ? round_up(api_.encode_scratch_bytes(plan_.push->spec(), chunk, inputs), kDeviceAlign) : 0;
  const std::size_t answer =
      plan_.pull->id() != EncodingId::kFp32 ? round_up(plan_.pull->bytes(chunk), kDeviceAlign) : 0;
  const std::size_t per_slot = sum + share + frame + scratch + answer;
  if (per_slot != 0) {
    const auto staging = take(position, per_slot * slot_count_, "staging");
    if (!staging) return tl::unexpected(staging.error());
    auto* at = static_cast<std::byte*>(*staging);
    const auto cut = [&at](std::size_t bytes) {
      std::byte* part = bytes == 0 ? nullptr : at;
      at += bytes;
      return part;
    };
    for (std::uint32_t i = 0; i < slot_count_; ++i) {
      Slot& slot = slots_[position * slot_count_ + i];
      slot.sum = reinterpret_cast<float*>(cut(sum));
      slot.share = reinterpret_cast<float*>(cut(share));
      slot.frame = cut(frame);
      slot.scratch = cut(scratch);
      slot.answer = cut(answer);
    }
  }

  const auto areas = blocks_.take_pinned(plan_.devices[position], plan_.groups() * area_bytes(plan_), "frames");
  if (!areas) return tl::unexpected(areas.error());
  areas_.push_back(*areas);
  return {};
}

float* DeviceMemory::residual(ChunkIndex chunk, std::uint32_t turn) const {
  return residuals_[plan_.position_of(chunk)] +
         (std::size_t{turn} * plan_.groups() + plan_.group_of(chunk)) * plan_.chunk_elements();
}

std::byte* DeviceMemory::frame(ChunkIndex chunk) const {
  return areas_[plan_.position_of(chunk)]->data() + plan_.group_of(chunk) * area_bytes(plan_);
}

std::byte* DeviceMemory::answer(ChunkIndex chunk) const {
  return frame(chunk) + answer_offset(plan_);
}

}  // namespace tributary
