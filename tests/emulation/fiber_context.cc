#include "tests/emulation/fiber_context.h"

#include <cstdint>
#include <cstdlib>

#if defined(TRIBUTARY_ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TRIBUTARY_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

namespace tributary::emulation {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;

}  // namespace

struct FiberStart {
  // The first thing that runs on a new stack.
  static void run(FiberContext* self) {
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    FiberContext& from = *self->came_from_;
    const void* stack = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
    if (from.stack_ == nullptr) {  // the caller's own stack, whose bounds only the sanitizer knows
      from.stack_ = stack;
      from.stack_bytes_ = bytes;
    }
#endif
    self->entry_(self->argument_);
    std::abort();
  }
};

#if defined(__x86_64__)

// Leaves the registers that a function must keep on the old stack, and takes them from the new one. A new stack begins
// with what this pops: six registers, of which rbx holds the context, and the address of the start below.
extern "C" void tributary_switch_stack(void** save_old, void* take_new);
extern "C" void tributary_start_fiber();
extern "C" __attribute__((used)) void tributary_run_fiber(void* self) {
  FiberStart::run(static_cast<FiberContext*>(self));
}
asm(R"(
.text
.type tributary_switch_stack, @function
tributary_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tributary_switch_stack, .-tributary_switch_stack
.type tributary_start_fiber, @function
tributary_start_fiber:
  movq %rbx, %rdi
  call tributary_run_fiber
  hlt
.size tributary_start_fiber, .-tributary_start_fiber
)");

#endif

FiberContext::FiberContext() {
#if defined(TRIBUTARY_THREAD_SANITIZER)
  tsan_fiber_ = __tsan_get_current_fiber();
#endif
}

FiberContext::FiberContext(void (*entry)(void*), void* argument)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes)),
      entry_(entry),
      argument_(argument),
      stack_(memory_.get()),
      stack_bytes_(kStackBytes) {
#if defined(__x86_64__)
  auto* top = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uintptr_t>(memory_.get() + kStackBytes) / 16 * 16);
  // After the seven pops the stack is aligned to 16, as before a call.
  *--top = 0;
  *--top = 0;
  *--top = reinterpret_cast<std::uint64_t>(&tributary_start_fiber);
  *--top = 0;                                      // rbp
  *--top = reinterpret_cast<std::uint64_t>(this);  // rbx
  for (int r = 12; r <= 15; ++r) *--top = 0;
  stack_pointer_ = top;
#else
  ::getcontext(&machine_);
  machine_.uc_stack.ss_sp = memory_.get();
  machine_.uc_stack.ss_size = kStackBytes;
  machine_.uc_link = nullptr;
  // makecontext passes ints only: the address in two of them.
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(this));
  void (*start)(unsigned, unsigned) = [](unsigned high, unsigned low) {
    FiberStart::run(
        reinterpret_cast<FiberContext*>(static_cast<std::uintptr_t>(static_cast<std::uint64_t>(high) << 32 | low)));
  };
  ::makecontext(&machine_, reinterpret_cast<void (*)()>(start), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address));
#endif
#if defined(TRIBUTARY_THREAD_SANITIZER)
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
}

FiberContext::~FiberContext() {
#if defined(TRIBUTARY_THREAD_SANITIZER)
  if (memory_) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void FiberContext::switch_to(FiberContext& to) {
  to.came_from_ = this;
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
  __sanitizer_start_switch_fiber(&fake_stack_, to.stack_, to.stack_bytes_);
#endif
#if defined(TRIBUTARY_THREAD_SANITIZER)
  __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
#if defined(__x86_64__)
  tributary_switch_stack(&stack_pointer_, to.stack_pointer_);
#else
  ::swapcontext(&machine_, &to.machine_);
#endif
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace tributary::emulation
