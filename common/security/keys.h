// Keys by which daemons recognise each other (docs/security.md): pairs of CURVE, in files of their own.
//
//   NAME.key   name, role, public and secret key, as TOML; its owner's alone (0600)
//   NAME.pub   the same without the secret, for the folder of admitted peers' keys
//
// Keys are written in Z85, 40 characters for 32 bytes (ZeroMQ RFC 32).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/choice.h"

namespace tributary {

inline constexpr std::size_t kKeyText = 40;      // characters
inline constexpr std::size_t kMaxKeyName = 128;  // bytes

enum class Role : std::uint8_t { kServer, kWorker, kAdmin };
template <>
inline constexpr std::string_view kWords<Role>[] = {"server", "worker", "admin"};

// 40 characters of Z85.
bool is_key(std::string_view text);

// The owner of a key, and the key.
struct Identity {
  std::string name;
  Role role = Role::kWorker;
  std::string key;  // public
  // Jobs that a worker may be a node of, from its .pub in authorized/: "NAME" or "BEGINNING*"; empty: any.
  std::vector<std::string> jobs = {};

  bool operator==(const Identity&) const = default;
};
std::string in_words(const Identity& identity);  // "worker 'node-0'"
bool may_join(const Identity& worker, std::string_view job);

struct KeyPair {
  Identity identity;
  std::string secret;
};

// Makes a new pair, from the system's random numbers. kInvalidArgument: a name that no file can have.
Result<KeyPair> make_key_pair(const std::string& name, Role role);

// Never trust their input: kConfig names the file and its flaw. They refuse a pair that others than its owner may read,
// and any file that others may write or replace.
Result<KeyPair> read_key_pair(const std::string& path);
Result<Identity> read_identity(const std::string& path);

// kIo; kInvalidArgument if the file is there already.
Status write_key_pair(const std::string& path, const KeyPair& pair);
Status write_identity(const std::string& path, const Identity& identity);

// A secret that is no pair (the admin token): 32 random bytes in hexadecimal digits.
std::string random_token();
// Returns whether others may read a secret file: all but its owner are others. If root owns the file and another user
// reads it, the group may read it, too (as with systemd's credentials and Kubernetes' secrets).
bool others_read(mode_t mode, uid_t owner, uid_t reader);
// Returns whether another user than the reader and root owns a file of keys or may write it. In a folder with the
// sticky bit (/tmp, a volume of Kubernetes') each file is its owner's.
bool others_write(mode_t mode, uid_t owner, uid_t reader);
// kConfig, with the cure: a folder of keys in which others could put or replace files.
Status check_key_folder(const std::string& path);
Result<std::string> read_token(const std::string& path);  // of a file that no other user may read
Status write_secret(const std::string& path, const std::string& text);

}  // namespace tributary
