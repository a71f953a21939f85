// FixedQueue: a first-in first-out queue whose capacity is set once, so that it allocates nothing afterwards.
#pragma once

#include <cstddef>
#include <vector>

#include "common/base/assert.h"

namespace tributary {

template <class T>
class FixedQueue {
 public:
  explicit FixedQueue(std::size_t capacity) : items_(capacity) {}
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& front() { return items_[first_]; }
  const T& front() const { return items_[first_]; }
  T& operator[](std::size_t i) { return items_[(first_ + i) % items_.size()]; }  // from the front
  const T& operator[](std::size_t i) const { return items_[(first_ + i) % items_.size()]; }
  T& back() { return items_[(first_ + size_ - 1) % items_.size()]; }
  void push(const T& item) {
    TRIB_ASSERT(size_ < items_.size());
    items_[(first_ + size_++) % items_.size()] = item;
  }
  void pop() {
    TRIB_ASSERT(size_ > 0);
    first_ = (first_ + 1) % items_.size();
    --size_;
  }
  // The first item, from the front, of which `condition` holds; null: none.
  template <class Condition>
  T* find(Condition condition) {
    for (std::size_t i = 0; i < size_; ++i) {
      T& item = items_[(first_ + i) % items_.size()];
      if (condition(item)) return &item;
    }
    return nullptr;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace tributary
