// Name and low priority of background threads, for work that training does not wait for.
#pragma once

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

namespace tributary {

inline constexpr int kBackgroundNiceness = 10;

// Sets name and priority of the calling thread alone (as Linux has it). name: at most 15 characters. False: the
// priority stays as it is, which only costs training some time.
inline bool become_background(const char* name) {
  pthread_setname_np(pthread_self(), name);
  return setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kBackgroundNiceness) == 0;
}

}  // namespace tributary
