#include "common/security/authorized_keys.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tributary {

namespace fs = std::filesystem;

Result<std::unique_ptr<AuthorizedKeys>> AuthorizedKeys::open(std::string folder, std::vector<Identity> also,
                                                             std::function<void(const std::string&)> warn) {
  std::unique_ptr<AuthorizedKeys> self(new AuthorizedKeys(std::move(folder), std::move(also), std::move(warn)));
  auto keys = self->read();
  if (!keys) return tl::unexpected(keys.error());
  self->keys_ = std::make_shared<const Keys>(std::move(*keys));
  return self;
}

// Logs a trouble once, until it is over.
void AuthorizedKeys::tell(const std::string& trouble) {
  const auto [at, added] = told_.try_emplace(trouble, true);
  at->second = true;
  if (added) warn_(trouble);
}

AuthorizedKeys::Keys AuthorizedKeys::always() const {
  Keys keys;
  for (const Identity& one : also_) keys.emplace(one.key, one);
  return keys;
}

Result<AuthorizedKeys::Keys> AuthorizedKeys::read() {
  for (auto& [trouble, met] : told_) met = false;
  Keys keys = always();
  // After open(): a folder that others may write admits no new peer; admitted peers stay until their file goes.
  const Status closed = check_key_folder(folder_);
  std::error_code error;
  if (!closed && fs::exists(folder_, error)) {
    if (!keys_) return tl::unexpected(closed.error());
    tell(closed.error().message + "; until then nobody else is let in by it");
  }
  std::vector<std::string> files;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == ".pub") files.push_back(at->path().string());
  }
  if (error) {
    return fail(ErrorCode::kConfig, "cannot read the folder of authorized keys " + folder_ + ": " + error.message() +
                                        "; [security] authorized names it, `tributary keys init` makes one");
  }
  std::ranges::sort(files);
  std::erase_if(files_, [&](const auto& known) { return !std::ranges::binary_search(files, known.first); });
  for (const std::string& file : files) {
    const auto before = files_.find(file);
    auto identity = closed ? read_identity(file) : tl::unexpected(closed.error());
    if (!identity) {
      if (closed) {
        tell(identity.error().message +
             (before == files_.end() ? "; nobody is let in by it" : "; what it said before counts"));
      }
      if (before == files_.end()) continue;
      identity = before->second;
    }
    files_[file] = *identity;
    if (keys.size() >= kMaxKeys) {
      tell(folder_ + " has more than " + std::to_string(kMaxKeys) + " keys; those of the last files are left out");
    } else if (!keys.emplace(identity->key, *identity).second) {
      tell(file + " has the key of " + in_words(keys.at(identity->key)) + " once more; it is left out");
    }
  }
  std::erase_if(told_, [](const auto& one) { return !one.second; });
  return keys;
}

std::optional<Identity> AuthorizedKeys::find(const std::string& key) const {
  std::shared_ptr<const Keys> keys;
  {
    const std::lock_guard lock(mutex_);
    keys = keys_;
  }
  const auto at = keys->find(key);
  return at == keys->end() ? std::nullopt : std::optional(at->second);
}

std::vector<Identity> AuthorizedKeys::refresh() {
  auto keys = read();
  std::error_code error;
  if (!keys && fs::exists(folder_, error)) {
    tell(keys.error().message + "; those that were let in before stay");
    return {};
  }
  if (!keys && error) return {};
  if (!keys) {
    tell("the folder of authorized keys " + folder_ + " is gone: nobody is let in");
    files_.clear();
    keys = always();
  }
  std::vector<Identity> gone;
  auto now = std::make_shared<const Keys>(std::move(*keys));
  const std::lock_guard lock(mutex_);
  for (const auto& [key, identity] : *keys_) {
    if (!now->contains(key)) gone.push_back(identity);
  }
  keys_ = std::move(now);
  return gone;
}

}  // namespace tributary
