// Identity of the machine a daemon runs on, as far as its network link goes: daemons with the same identity share a
// link and can share memory.
#pragma once

#include <string>

namespace tributary {

// Returns the kernel's boot id and the inode of the process's network namespace ("<uuid>/<inode>"). All processes that
// see the same interfaces have one identity; machines, and containers with a network of their own, have different ones.
// "unknown-<random>" where /proc does not show them.
std::string host_identity();
// Returns the identity that a configuration states, otherwise the machine's.
inline std::string host_identity(const std::string& stated) {
  return stated.empty() ? host_identity() : stated;
}

// Names a file that one process at a time can hold, the same from any mount or container: the machine's boot, the
// device and inode of its folder, and its name. Empty if the path is, or its folder is not there.
std::string file_identity(const std::string& path);

}  // namespace tributary
