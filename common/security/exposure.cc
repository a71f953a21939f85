#include "common/security/exposure.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/security/keys.h"
#include "common/system/host_port.h"

namespace tributary {
namespace {

// Returns why other users could reach a Unix socket of that path, or put one there first; empty: they cannot.
std::string others_in_folder(std::string_view path) {
  const std::string above = std::filesystem::path(path).parent_path().string();
  const std::string folder = above.empty() ? "." : above;
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) {
    return "is in the folder " + folder + ", which is not there yet: somebody else could make it";
  }
  // The sticky bit helps files that are there, not one that is still to be made.
  if (!others_write(info.st_mode & ~static_cast<mode_t>(S_ISVTX), info.st_uid, ::geteuid())) return {};
  return "is in the folder " + folder + ", which other users may write: one of them could listen there first";
}

// Returns why others than its audience reach the address; empty: they do not.
std::string why_exposed(const Listening& at) {
  if (!stays_on_machine(at.address)) return "is not on this machine alone";
  if (at.widest == Audience::kMachine || at.address.empty()) return {};
  if (const auto path = ipc_path(at.address)) return others_in_folder(*path);
  return "is open to every user of this machine";
}

}  // namespace

bool stays_on_machine(std::string_view address) {
  if (address.empty() || ipc_path(address) || address.starts_with("inproc://")) return true;
  const std::string_view host = host_port(address).host;
  if (host == "localhost" || host == "::1") return true;
  // 127.0.0.0/8, written out.
  if (!host.starts_with("127.")) return false;
  return host.find_first_not_of("0123456789.") == std::string_view::npos;
}

Status check_exposure(std::span<const Listening> listening, bool keys, bool insecure) {
  if (keys || insecure) return {};
  for (const Listening& at : listening) {
    const std::string why = why_exposed(at);
    if (why.empty()) continue;
    return fail(ErrorCode::kConfig,
                at.key + " = \"" + at.address + "\" " + why +
                    ", and there are no keys: whoever gets there could read and change every job. Either give keys "
                    "(`tributary keys init`, then [security] keys); or listen where nobody else gets (" +
                    at.key + " = \"" + at.instead +
                    "\"); or, where everybody is trusted, say so ([security] insecure = true)");
  }
  return {};
}

}  // namespace tributary
