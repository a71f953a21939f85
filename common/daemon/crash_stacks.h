// A daemon that crashes, or is aborted because it stands still, says where each of its threads was.
//
// Frames are addresses in a program or library, as "tributary-worker(+0x1a2b3c)[0x55...]": addr2line -Cfe PROGRAM
// 0x1a2b3c names the function in a build with the same bytes. No debugger has to be where the daemon runs.
#pragma once

namespace tributary {

// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write the stack of the thread that they hit, and then of each
// other thread, to standard error. The signal's usual end follows. Threads that hold SIGUSR2 back are left out. Call
// once, before there are other threads. Nothing happens under a sanitizer, whose own report says more.
void say_stacks_on_crash();

}  // namespace tributary
