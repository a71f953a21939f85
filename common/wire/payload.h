// Payload: the raw second frame of a received message, owned and movable, without saying who allocated it.
//
// The cores hold received gradient frames until a round is complete (hold-then-fuse), and must not know ZeroMQ. A
// Payload keeps the owner's handle (a zmq_msg_t, a shared_ptr of the simulator) inline, so that holding a frame
// allocates nothing. Thread rule: one owner at a time; may be moved to and destroyed on another thread if the wrapped
// handle may.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace tributary {

class Payload {
 public:
  Payload() = default;

  // Takes over `owner` (nothrow-movable, at most 64 bytes); `bytes` must stay valid until the owner is destroyed and
  // must not move with the owner.
  template <class Owner>
  requires(!std::is_same_v<std::decay_t<Owner>, Payload>) Payload(Owner&& owner, std::span<const std::byte> bytes)
      : bytes_(bytes) {
    using Held = std::decay_t<Owner>;
    static_assert(sizeof(Held) <= kInline && alignof(Held) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Held>);
    new (storage_) Held(std::forward<Owner>(owner));
    ops_ = &kOps<Held>;
  }
  // The same, of bytes that only the owner reads or writes.
  template <class Owner>
  static Payload alone(Owner&& owner, std::span<std::byte> bytes) {
    Payload payload(std::forward<Owner>(owner), std::span<const std::byte>(bytes));
    payload.alone_ = true;
    return payload;
  }

  Payload(Payload&& other) noexcept { take(other); }
  Payload& operator=(Payload&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Payload() { reset(); }

  void reset() {
    if (ops_) ops_->destroy(storage_);
    ops_ = nullptr;
    bytes_ = {};
    alone_ = false;
  }
  // Drops all but the last `bytes` bytes.
  void keep_last(std::size_t bytes) { bytes_ = bytes_.last(bytes); }
  bool empty() const { return ops_ == nullptr; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Returns the bytes for writing; empty: others may read them, as where a node's memory is read in place.
  std::span<std::byte> own_bytes() {
    return alone_ ? std::span(const_cast<std::byte*>(bytes_.data()), bytes_.size()) : std::span<std::byte>();
  }

 private:
  static constexpr std::size_t kInline = 64;  // sizeof(zmq_msg_t)
  struct Ops {
    void (*relocate)(void* from, void* to) noexcept;
    void (*destroy)(void*) noexcept;
  };
  template <class Held>
  static constexpr Ops kOps{[](void* from, void* to) noexcept {
                              Held* source = std::launder(static_cast<Held*>(from));
                              new (to) Held(std::move(*source));
                              source->~Held();
                            },
                            [](void* held) noexcept { std::launder(static_cast<Held*>(held))->~Held(); }};

  void take(Payload& other) noexcept {
    ops_ = std::exchange(other.ops_, nullptr);
    bytes_ = std::exchange(other.bytes_, {});
    alone_ = std::exchange(other.alone_, false);
    if (ops_) ops_->relocate(other.storage_, storage_);
  }

  std::span<const std::byte> bytes_;
  bool alone_ = false;
  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[kInline];
};

}  // namespace tributary
