// Files of keys and tokens: from other people.
#include "common/security/keys.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace tributary::fuzz::keys {
namespace {

void must_be_sound(const Identity& identity) {
  require(is_key(identity.key), "a key is 40 characters of Z85");
  require(!identity.name.empty() && identity.name.size() <= kMaxKeyName && identity.name[0] != '.' &&
              identity.name.find('/') == std::string::npos,
          "its name can be a file's");
}

}  // namespace

std::vector<Bytes> seeds() {
  const std::string open(kKeyText, 'a'), secret(kKeyText, 'b');
  const std::string identity = "[key]\nname = \"node-0\"\nrole = \"worker\"\npublic = \"" + open + "\"\n";
  return {bytes_of(identity), bytes_of(identity + "secret = \"" + secret + "\"\n"),
          bytes_of(std::string(64, 'f') + "\n")};
}

void run(std::span<const std::byte> bytes) {
  static MemoryFile file;
  file.write(bytes);
  const Result<KeyPair> pair = read_key_pair(file.path());
  const Result<Identity> identity = read_identity(file.path());
  require(!pair || !identity, "a file with a secret is no public one");
  if (pair) must_be_sound(pair->identity);
  if (pair) require(is_key(pair->secret), "a secret is 40 characters of Z85");
  if (identity) must_be_sound(*identity);
  if (const Result<std::string> token = read_token(file.path())) {
    require(token->find_first_of("\r\n ") == std::string::npos, "a token can be in a header");
  }
}

Target target() {
  return {"keys", seeds, run};
}

}  // namespace tributary::fuzz::keys
