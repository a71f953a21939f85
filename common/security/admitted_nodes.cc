#include "common/security/admitted_nodes.h"

#include <algorithm>

namespace tributary {

void AdmittedNodes::set(JobId job, ViewId view, const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  Admitted& admitted = jobs_[job];
  if (admitted.view != view) admitted.used.clear();
  admitted.view = view;
  admitted.keys = keys;
  admitted.over = false;
}

void AdmittedNodes::keep(const std::function<bool(JobId)>& open) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_, [&](const auto& entry) { return entry.first != JobId() && !open(entry.first); });
}

void AdmittedNodes::measure_no_more() {
  const std::lock_guard lock(mutex_);
  const auto measuring = jobs_.find(JobId());
  if (measuring == jobs_.end()) return;
  measuring->second.keys.clear();
  measuring->second.over = true;
}

bool AdmittedNodes::may_measure(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto measuring = jobs_.find(JobId());
  if (measuring == jobs_.end() || measuring->second.over) return false;
  const std::vector<std::string>& keys = measuring->second.keys;
  return !own_ || std::ranges::find(keys, key) != keys.end();
}

std::size_t AdmittedNodes::nodes(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [job, admitted] : jobs_) count += static_cast<std::size_t>(std::ranges::count(admitted.keys, key));
  return count;
}

std::size_t AdmittedNodes::nodes() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [job, admitted] : jobs_) count += admitted.keys.size();
  return count;
}

Status AdmittedNodes::admit(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const bool known = std::ranges::any_of(
      jobs_, [&](const auto& entry) { return std::ranges::find(entry.second.keys, key) != entry.second.keys.end(); });
  if (known) return {};
  return fail(ErrorCode::kInvalidArgument, "its key " + key + " is of no node whose job is open here");
}

Result<std::string> AdmittedNodes::admit(const DataToken& token, std::string_view proof) {
  const std::lock_guard lock(mutex_);
  const auto job = jobs_.find(token.job);
  if (!own_ || job == jobs_.end() || job->second.view != token.view || token.node.value >= job->second.keys.size())
    return fail(ErrorCode::kInvalidArgument, "its token is of no view that is open here");
  const std::string& key = job->second.keys[token.node.value];
  const std::string who = "node " + std::to_string(token.node.value);
  const auto expected = token_proof(token, *own_, key);
  if (!expected) return tl::unexpected(expected.error());
  if (!same_proof(*expected, proof)) return fail(ErrorCode::kInvalidArgument, "its token is not one of " + who);
  std::uint32_t& used = job->second.used[{token.node, token.lane}];
  if (token.use <= used)
    return fail(ErrorCode::kInvalidArgument, "its token is one of " + who + " that was used already");
  used = token.use;
  return key;
}

}  // namespace tributary
