// Folders that are this user's alone, and where his daemons' sockets are by default.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// Makes a folder that nobody else may enter (0700, whatever the umask); one that is there and this user's is closed to
// others. Those above it are made as the umask says. kUnavailable: it is another user's, or a link. kIo.
Status make_private_folder(const std::string& path);
// kUnavailable, with the owner's number: what this process writes into the folder is its owner's to redirect.
Status check_own_folder(const std::string& path);

// Folder of this user's daemons: "tributary" in $XDG_RUNTIME_DIR or else /run/user/UID, if that is a folder of his
// alone; else /tmp/tributary-UID, which counts only as make_private_folder() made it. Daemons and trainers that have
// one environment find one folder.
std::string run_folder();
std::string default_worker_socket();  // in it
// Makes the run folder, if the path that a daemon is to listen at is in it. Others are there already.
Status prepare_socket_folder(const std::string& path);

}  // namespace tributary
