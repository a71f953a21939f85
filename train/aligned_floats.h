// A fixed-size array of floats, zeroed, that starts at a cache line: as tensors in the flat space do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace tributary::train {

class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(std::size_t size) : size_(size) {
    if (size == 0) return;
    data_.reset(static_cast<float*>(::operator new(size * sizeof(float), kAlign)));
    std::fill_n(data_.get(), size, 0.0f);
  }

  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::span<float> span() { return {data_.get(), size_}; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlign); }
  };
  std::unique_ptr<float, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace tributary::train
