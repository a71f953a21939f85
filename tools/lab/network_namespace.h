// Work inside a network namespace without leaving this process, and the processes inside one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::lab {

// Runs `work` on a thread of its own that has entered the namespace: sockets that it opens and /proc/thread-self/net
// belong to it. /sys does not (it is the mount's). kIo: no such namespace, or it may not be entered.
Status in_network_namespace(const std::string& path, const std::function<Status()>& work);

// Whether this process may make network namespaces and shape their links; the error says what is missing.
Status may_make_namespaces();

// Names in iproute2's folder that begin with `prefix`, sorted.
std::vector<std::string> namespaces_named(const std::string& prefix);

// Processes with a thread in the namespace. Empty also if there is none of this name.
std::vector<pid_t> processes_in(const std::string& path);

}  // namespace tributary::lab
