// Reports to the service manager that started the daemon (sd_notify(3)): one datagram to the socket that NOTIFY_SOCKET
// names, if it names one. Never blocks, never fails the daemon.
#pragma once

#include <string>

namespace tributary {

// "READY=1", "STOPPING=1", "STATUS=words".
void tell_supervisor(const std::string& state);

}  // namespace tributary
