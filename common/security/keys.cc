#include "common/security/keys.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/config/toml_reader.h"
#include "common/system/file_descriptor.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxKeyFile = 4096;  // bytes
constexpr std::string_view kZ85 =
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

// Returns whether a name is also fit for a file.
bool sound_name(std::string_view name) {
  const auto sound = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.size() <= kMaxKeyName && name[0] != '.' && std::ranges::all_of(name, sound);
}

std::string reason() {
  return std::strerror(errno);
}

std::string in_digits(mode_t mode) {
  return std::to_string((mode >> 6) & 7) + std::to_string((mode >> 3) & 7) + std::to_string(mode & 7);
}

tl::unexpected<Error> written_by_others(const std::string& path, const struct stat& info) {
  return fail(ErrorCode::kConfig, path + " may be written by other users (owner " + std::to_string(info.st_uid) +
                                      ", mode " + in_digits(info.st_mode) +
                                      "), who would decide whose keys count; make it this user's or root's, and close "
                                      "it: chmod go-w " +
                                      path);
}

// of: the owner of the file in it, who may replace the file anyway.
Status check_folder(const std::string& path, uid_t of) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return fail(ErrorCode::kConfig, "cannot look at the folder of keys " + path + ": " + reason());
  }
  const uid_t owner = info.st_uid == of ? ::geteuid() : info.st_uid;
  if (others_write(info.st_mode, owner, ::geteuid())) return written_by_others(path, info);
  return {};
}

// secret: refuses a file that others may read.
Result<std::string> read_file(const std::string& path, bool secret) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail(ErrorCode::kConfig, "cannot open the key file " + path + ": " + reason());
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kConfig, path + " is no file of a key");
  }
  if (secret && others_read(info.st_mode, info.st_uid, ::geteuid())) {
    return fail(ErrorCode::kConfig, path + " is a secret that other users may read (mode " + in_digits(info.st_mode) +
                                        "); make it its owner's alone: chmod 600 " + path);
  }
  if (!secret && others_write(info.st_mode, info.st_uid, ::geteuid())) return written_by_others(path, info);
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (Status closed = check_folder(folder.empty() ? "." : folder, info.st_uid); !closed) {
    return tl::unexpected(closed.error());
  }
  std::string text(kMaxKeyFile + 1, '\0');
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) return fail(ErrorCode::kConfig, "cannot read the key file " + path + ": " + reason());
  if (static_cast<std::size_t>(size) > kMaxKeyFile) {
    return fail(ErrorCode::kConfig, path + " has more than " + std::to_string(kMaxKeyFile) + " bytes: it is no key");
  }
  text.resize(static_cast<std::size_t>(size));
  return text;
}

// mode: of the new file, which appears whole or not at all.
Status write_new(const std::string& path, const std::string& text, mode_t mode) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file && errno == EEXIST) {
    return fail(ErrorCode::kInvalidArgument, path + " is there already; choose another name, or remove it first");
  }
  if (!file) return fail(ErrorCode::kIo, "cannot make " + path + ": " + reason());
  const bool whole =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(file.get()) == 0;
  if (whole) return {};
  const std::string why = reason();
  ::unlink(path.c_str());
  return fail(ErrorCode::kIo, "cannot write " + path + ": " + why);
}

// Quotes and line ends would end the string that a file has it in.
bool sound_pattern(std::string_view pattern) {
  const std::string_view name = pattern.substr(0, pattern.size() - (pattern.ends_with('*') ? 1 : 0));
  return !pattern.empty() && name.find_first_of("*\"\\\n\r") == std::string_view::npos;
}

struct KeyFile {
  Identity identity;
  std::string secret;
};

Result<KeyFile> parse(const std::string& path, const std::string& text, bool wants_secret) {
  auto parsed = TomlReader::parse(text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  KeyFile file;
  (*parsed)("key", "name", file.identity.name);
  (*parsed)("key", "role", file.identity.role);
  (*parsed)("key", "public", file.identity.key);
  (*parsed)("key", "secret", file.secret);
  (*parsed)("key", "jobs", file.identity.jobs);
  parsed->check_unknown();
  if (Status status = parsed->finish(); !status) return tl::unexpected(status.error());
  const auto bad = [&](const char* what) {
    return fail(ErrorCode::kConfig, path + " " + what + "; make keys with `tributary keys new`");
  };
  if (!sound_name(file.identity.name)) return bad("has no [key] name of letters, digits, '-', '_' and '.'");
  if (!is_key(file.identity.key)) return bad("has no [key] public of 40 characters in Z85");
  const std::vector<std::string>& jobs = file.identity.jobs;
  if (!jobs.empty() && (wants_secret || file.identity.role != Role::kWorker))
    return bad("has [key] jobs, which belong into a worker's .pub in authorized/");
  if (!std::ranges::all_of(jobs, sound_pattern))
    return bad("has [key] jobs that are no names of jobs, nor a name's beginning and '*' behind it");
  if (wants_secret && !is_key(file.secret))
    return bad("has no [key] secret of 40 characters in Z85: it is no .key file");
  if (!wants_secret && !file.secret.empty())
    return bad("has a secret, which belongs nowhere but into its owner's .key");
  return file;
}

std::string text_of(const Identity& identity, const std::string& secret) {
  std::string text = "[key]\nname = \"" + identity.name + "\"\nrole = \"" + word(identity.role) + "\"\npublic = \"" +
                     identity.key + "\"\n";
  std::string jobs;
  for (const std::string& job : identity.jobs) jobs += (jobs.empty() ? "\"" : ", \"") + job + "\"";
  if (!jobs.empty()) text += "jobs = [" + jobs + "]\n";
  if (!secret.empty()) text += "secret = \"" + secret + "\"\n";
  return text;
}

}  // namespace

bool is_key(std::string_view text) {
  return text.size() == kKeyText && text.find_first_not_of(kZ85) == std::string_view::npos;
}

bool may_join(const Identity& worker, std::string_view job) {
  return worker.jobs.empty() || std::ranges::any_of(worker.jobs, [job](std::string_view pattern) {
           return pattern.ends_with('*') ? job.starts_with(pattern.substr(0, pattern.size() - 1)) : job == pattern;
         });
}

std::string in_words(const Identity& identity) {
  return word(identity.role) + " '" + identity.name + "'";
}

Result<KeyPair> make_key_pair(const std::string& name, Role role) {
  if (!sound_name(name)) {
    return fail(ErrorCode::kInvalidArgument, "a key cannot be called \"" + name +
                                                 "\"; give it letters, digits, '-', '_' and '.', at most " +
                                                 std::to_string(kMaxKeyName) + ", and no '.' at its beginning");
  }
  std::array<char, kKeyText + 1> open{}, secret{};
  if (zmq_curve_keypair(open.data(), secret.data()) != 0) {
    return fail(ErrorCode::kInternal, std::string("ZeroMQ makes no keys (") + zmq_strerror(zmq_errno()) +
                                          "): it is built without CURVE; install one that has it");
  }
  return KeyPair{{name, role, open.data()}, secret.data()};
}

Result<KeyPair> read_key_pair(const std::string& path) {
  return read_file(path, true)
      .and_then([&](const std::string& text) { return parse(path, text, true); })
      .map([](KeyFile file) {
        return KeyPair{std::move(file.identity), std::move(file.secret)};
      });
}

Result<Identity> read_identity(const std::string& path) {
  return read_file(path, false)
      .and_then([&](const std::string& text) { return parse(path, text, false); })
      .map([](KeyFile file) { return std::move(file.identity); });
}

Status write_key_pair(const std::string& path, const KeyPair& pair) {
  return write_new(path, text_of(pair.identity, pair.secret), 0600);
}

Status write_identity(const std::string& path, const Identity& identity) {
  return write_new(path, text_of(identity, ""), 0644);
}

bool others_read(mode_t mode, uid_t owner, uid_t reader) {
  const bool lent_by_root = owner == 0 && reader != 0;
  return (mode & (lent_by_root ? 037 : 077)) != 0;
}

bool others_write(mode_t mode, uid_t owner, uid_t reader) {
  if (owner != reader && owner != 0) return true;
  const bool each_his_own = S_ISDIR(mode) && (mode & S_ISVTX) != 0;
  return (mode & 022) != 0 && !each_his_own;
}

Status check_key_folder(const std::string& path) {
  return check_folder(path, ::geteuid());
}

std::string random_token() {
  std::array<unsigned char, 32> bytes{};
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t more = ::getrandom(bytes.data() + got, bytes.size() - got, 0);
    if (more > 0) got += static_cast<std::size_t>(more);
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  return text;
}

Result<std::string> read_token(const std::string& path) {
  return read_file(path, true).and_then([&](std::string text) -> Result<std::string> {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
    constexpr std::size_t kLeast = 32;
    if (text.size() >= kLeast && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; })) return text;
    return fail(ErrorCode::kConfig, path + " has no token of " + std::to_string(kLeast) +
                                        " or more printable characters; `tributary keys init` makes one");
  });
}

Status write_secret(const std::string& path, const std::string& text) {
  return write_new(path, text + "\n", 0600);
}

}  // namespace tributary
