// AuthorizedKeys: the peers that are admitted: the .pub files of a folder (docs/security.md), read repeatedly, so that
// a new file admits a peer, and a removed one shuts it out, without a restart. Thread rule: any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/security/keys.h"

namespace tributary {

class AuthorizedKeys {
 public:
  static constexpr std::size_t kMaxKeys = 65536;

  // also: peers that are always admitted. warn: a line for the log, once for each trouble.
  // kConfig: the folder cannot be read, or others may write it.
  static Result<std::unique_ptr<AuthorizedKeys>> open(std::string folder, std::vector<Identity> also,
                                                      std::function<void(const std::string&)> warn);

  std::optional<Identity> find(const std::string& key) const;
  // Reads the folder again. Returns the peers that are no longer in it. A file that cannot be read counts as before; so
  // do all files while the folder cannot be listed. If the folder is gone, so are all peers. While others may write the
  // folder, new files are ignored.
  std::vector<Identity> refresh();

 private:
  using Keys = std::map<std::string, Identity>;  // by public key
  AuthorizedKeys(std::string folder, std::vector<Identity> also, std::function<void(const std::string&)> warn)
      : folder_(std::move(folder)), also_(std::move(also)), warn_(std::move(warn)) {}
  Keys always() const;
  Result<Keys> read();
  void tell(const std::string& trouble);

  const std::string folder_;
  const std::vector<Identity> also_;
  const std::function<void(const std::string&)> warn_;
  std::map<std::string, bool> told_;       // troubles; false: not met in this reading
  std::map<std::string, Identity> files_;  // as last read
  mutable std::mutex mutex_;               // guards keys_
  std::shared_ptr<const Keys> keys_;
};

}  // namespace tributary
