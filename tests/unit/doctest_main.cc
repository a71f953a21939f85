#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <csignal>

// Once in thousands of runs libzmq 4.3.4 loses a message that arrives while its socket closes, and LeakSanitizer finds
// the decoder's buffer that it lay in. A message that we lose is found all the same: by the object of ours that held
// it.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libzmq.so";
}

// Names in reports: clang's runtime looks for a symbolizer of LLVM's, which is 70 MB more; binutils come with a compiler.
// Runs before the sanitizers do.
#define TRIBUTARY_SANITIZER_HOOK extern "C" __attribute__((no_sanitize("address", "thread", "undefined"), used))
TRIBUTARY_SANITIZER_HOOK const char* __asan_default_options() {
  return "external_symbolizer_path=/usr/bin/addr2line";
}
TRIBUTARY_SANITIZER_HOOK const char* __tsan_default_options() {
  return "external_symbolizer_path=/usr/bin/addr2line";
}

// As in the daemons: Gloo writes to connections that the other side has closed, and says so by an error.
int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return doctest::Context(argc, argv).run();
}
