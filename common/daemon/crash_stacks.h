// A daemon that crashes, or is aborted because it stands still, prints the stack of each of its threads.
//
// Frames are addresses in a program or library, as "tributary-worker(+0x1a2b3c)[0x55...]": addr2line -Cfe PROGRAM
// 0x1a2b3c names the function in a build with the same bytes. The daemon's machine needs no debugger.
#pragma once

namespace tributary {

// Makes SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write the stack of the thread that they hit, and then of each other
// thread, to standard error. The signal's usual end follows. Threads that block SIGUSR2 are left out. Call once, before
// there are other threads. Does nothing under a sanitizer, whose own report has more.
void say_stacks_on_crash();

}  // namespace tributary
