#include "worker/device/allreduce_devices.h"

#include "common/base/assert.h"

namespace tributary {

AllreduceDevices::AllreduceDevices(std::shared_ptr<DeviceApi> api, AllreducePlan plan, std::uint32_t state_arrays,
                                   std::uint64_t timeout_ns)
    : api_(std::move(api)),
      plan_(std::move(plan)),
      state_arrays_(state_arrays),
      timeout_ns_(timeout_ns),
      blocks_(*api_),
      arrays_(plan_.devices()) {}

Result<std::shared_ptr<AllreduceDevices>> AllreduceDevices::create(std::shared_ptr<DeviceApi> api, AllreducePlan plan,
                                                                   std::uint32_t state_arrays,
                                                                   std::uint64_t timeout_ns) {
  TRIB_ASSERT(plan.node.position_of_rank.size() == plan.node.devices.size());
  std::shared_ptr<AllreduceDevices> self(
      new AllreduceDevices(std::move(api), std::move(plan), state_arrays, timeout_ns));
  for (std::uint32_t position = 0; position < self->plan_.devices(); ++position) {
    if (Status done = self->allocate(position); !done) return tl::unexpected(done.error());
  }
  return self;
}

Result<float*> AllreduceDevices::take(std::uint32_t position, std::size_t elements, const char* purpose) {
  const Result<void*> block = blocks_.take(plan_.node.devices[position], elements * sizeof(float), purpose);
  if (!block) return tl::unexpected(block.error());
  return static_cast<float*>(*block);
}

Status AllreduceDevices::allocate(std::uint32_t position) {
  Arrays& arrays = arrays_[position];
  const auto gradients = take(position, plan_.padded_elements(), "a rank's gradients");
  if (!gradients) return tl::unexpected(gradients.error());
  const auto parameters = take(position, plan_.padded_elements(), "the parameters");
  if (!parameters) return tl::unexpected(parameters.error());
  arrays.gradients = *gradients;
  arrays.parameters = *parameters;
  for (std::uint32_t i = 0; i < state_arrays_; ++i) {
    const auto state = take(position, plan_.state_elements(), "the optimizer's state");
    if (!state) return tl::unexpected(state.error());
    arrays.state.push_back(*state);
  }
  const auto slots = take(position, kSlots * slot_elements(), "staging");
  if (!slots) return tl::unexpected(slots.error());
  arrays.slots = *slots;
  const DeviceIndex device = plan_.node.devices[position];
  const auto pinned = blocks_.take_pinned(device, kSlots * pinned_slot_bytes(), "staging");
  if (!pinned) return tl::unexpected(pinned.error());
  arrays.pinned = reinterpret_cast<float*>((*pinned)->data());
  auto loan = make_loan(*api_, device, *gradients, *parameters, plan_.padded_elements() * sizeof(float));
  if (!loan) return tl::unexpected(loan.error());
  loans_.push_back(std::move(*loan));
  return {};
}

float* AllreduceDevices::tail(std::uint32_t position, std::uint32_t slot) const {
  return arrays_[position].slots + slot * slot_elements();
}

float* AllreduceDevices::share(std::uint32_t position, std::uint32_t slot) const {
  return tail(position, slot) + kPart;
}

}  // namespace tributary
