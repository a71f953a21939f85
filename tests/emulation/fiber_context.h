// A stack that a fiber runs on and can leave. It is announced to the sanitizers, which track stacks.
//
// On x86-64 the switch is our own: swapcontext() asks the kernel for the signal mask every time, which would be most of
// the time that the emulation takes. Elsewhere it is swapcontext().
#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tributary::emulation {

class FiberContext {
 public:
  // The context of the caller: somewhere to come back to.
  FiberContext();
  // Runs entry(argument), which must not return, once it is switched to.
  FiberContext(void (*entry)(void*), void* argument);
  ~FiberContext();
  FiberContext(const FiberContext&) = delete;
  FiberContext& operator=(const FiberContext&) = delete;

  // Continues in `to`; returns when another context switches back to this, the running one.
  void switch_to(FiberContext& to);

 private:
  friend struct FiberStart;

  std::unique_ptr<std::byte[]> memory_;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  FiberContext* came_from_ = nullptr;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;  // while it does not run
#else
  ucontext_t machine_{};
#endif
  // Used by sanitizers only.
  [[maybe_unused]] const void* stack_ = nullptr;
  [[maybe_unused]] std::size_t stack_bytes_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
};

}  // namespace tributary::emulation
