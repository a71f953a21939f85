#include "train/lent_memory.h"

#include <utility>

namespace tributary::train {

// Remembers that the memory could not be opened: errors of an attach may have other reasons.
class LentMemory::Opener final : public DeviceMemoryOpener {
 public:
  explicit Opener(std::shared_ptr<DeviceMemoryOpener> opener) : opener_(std::move(opener)) {}
  std::string uuid() const override { return opener_->uuid(); }
  Result<void*> open(std::span<const std::byte> handle) override {
    Result<void*> opened = opener_->open(handle);
    if (!opened) failed_ = true;
    return opened;
  }
  void close(void* memory) override { opener_->close(memory); }
  bool failed() const { return failed_; }

 private:
  const std::shared_ptr<DeviceMemoryOpener> opener_;
  bool failed_ = false;
};

LentMemory::LentMemory(std::shared_ptr<DeviceMemoryOpener> opener) {
  if (opener) opener_ = std::make_shared<Opener>(std::move(opener));
}

Result<std::unique_ptr<Session>> LentMemory::attach(SessionOptions options, const std::vector<TensorSpec>& tensors,
                                                    const std::function<void(const std::string&)>& note) {
  options.device = opener_;
  Result<std::unique_ptr<Session>> attached = Session::attach(options, tensors);
  if (attached || !opener_ || !opener_->failed()) return attached;
  const std::string why = "the device memory that the worker lends cannot be opened: " + attached.error().message;
  note(why + "; attaching again, with gradients in host memory");
  opener_.reset();
  options.device.reset();
  attached = Session::attach(options, tensors);
  if (!attached) return fail(attached.error().code, attached.error().message + " (" + why + ")");
  return attached;
}

RankMemory LentMemory::of(Session& session, std::size_t tensors) {
  const bool on_device = session.on_device();
  parameters_.clear();
  gradients_.clear();
  for (std::size_t t = 0; t < tensors; ++t) {
    parameters_.push_back(on_device ? session.parameters_device(t) : session.parameters(t).data());
    gradients_.push_back(on_device ? session.gradient_device(t) : session.gradient(t).data());
  }
  return {.parameters = parameters_,
          .gradients = gradients_,
          .lasting = true,
          .place = on_device ? MemoryPlace::kDevice : MemoryPlace::kHost};
}

void LentMemory::next_round(Session& session) {
  if (session.on_device()) return;
  for (std::size_t t = 0; t < gradients_.size(); ++t) gradients_[t] = session.gradient(t).data();
}

}  // namespace tributary::train
