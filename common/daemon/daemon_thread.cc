#include "common/daemon/daemon_thread.h"

#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "common/base/exit_codes.h"

namespace tributary {
namespace {

constexpr std::size_t kNameLength = 15;  // of a thread, as the kernel keeps it

[[noreturn]] void end_process(const std::string& name, const ThreadLog& log, const char* what) {
  std::fprintf(stderr, "the thread '%s' failed: %s; the process ends\n", name.c_str(), what);
  try {
    if (log)
      log("the thread '" + name + "' failed: " + what + "; the process ends, and its peers go on as after a crash");
  } catch (...) {  // without memory there may be no line; standard error has it
  }
  std::_Exit(kExitFailed);
}

}  // namespace

std::thread start_thread(std::string name, ThreadLog log, std::function<void()> run) {
  return std::thread([name = std::move(name), log = std::move(log), run = std::move(run)] {
    ::pthread_setname_np(::pthread_self(), name.substr(0, kNameLength).c_str());
    try {
      run();
    } catch (const std::exception& e) {
      end_process(name, log, e.what());
    } catch (...) {
      end_process(name, log, "something that is no std::exception was thrown");
    }
  });
}

Status contained(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit, "there is not enough memory");
  } catch (const std::length_error& e) {
    return fail(ErrorCode::kLimit, std::string("there is not enough memory: ") + e.what());
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, e.what());
  }
}

}  // namespace tributary
