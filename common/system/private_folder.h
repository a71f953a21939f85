// Folders that only this user may enter, and the default place of the user's daemons' sockets.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// Makes a folder that only this user may enter (0700, whatever the umask); an existing one of this user is closed to
// others. Folders above it are made with the umask. kUnavailable: it is another user's, or a link. kIo.
Status make_private_folder(const std::string& path);
// Checks that the folder's owner is this user, because an owner can redirect files that this process writes there.
// kUnavailable, with the owner's number.
Status check_own_folder(const std::string& path);

// Returns the folder of this user's daemons: "tributary" in $XDG_RUNTIME_DIR or else /run/user/UID, if that is a folder
// of this user alone; else /tmp/tributary-UID, which counts only as make_private_folder() made it. Daemons and trainers
// that have one environment find one folder.
std::string run_folder();
std::string default_worker_socket();  // in it
// Makes the run folder, if the path that a daemon is to listen at is in it. Others are there already.
Status prepare_socket_folder(const std::string& path);

}  // namespace tributary
