// AdmittedNodes: whose connections a server's lanes take: the nodes' of the views that are open here, as the
// coordinator said. What they may say there is looked at message by message. Thread rule: any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/security/data_tokens.h"
#include "common/security/keys.h"

namespace tributary {

class AdmittedNodes {
 public:
  // own: this server's pair, which tokens are looked at with; null: there are no keys.
  explicit AdmittedNodes(std::shared_ptr<const KeyPair> own) : own_(std::move(own)) {}

  // keys: of the view's nodes. Tokens of its job's earlier views are good for nothing any more.
  void set(JobId job, ViewId view, const std::vector<std::string>& keys);
  // Measuring (docs/doctor.md) is let in like a job, of id 0, for as long as it is set.
  void measure(std::uint32_t exam, const std::vector<std::string>& keys) { set(JobId(), ViewId(exam), keys); }
  void measure_no_more();
  // Of whom a message about measuring came; without keys "".
  bool may_measure(const std::string& key) const;
  // Jobs that are not open any more go.
  void keep(const std::function<bool(JobId)>& open);

  // How many nodes of views are let in by this key, or in all.
  std::size_t nodes(const std::string& key) const;
  std::size_t nodes() const;
  // May who showed this key come in? kInvalidArgument: no.
  Status admit(const std::string& key) const;
  // May who showed this token? Whose key it has then; the token is good no more. kMalformed, kInvalidArgument.
  Result<std::string> admit(const DataToken& token, std::string_view proof);

 private:
  struct Admitted {
    ViewId view;
    std::vector<std::string> keys;                                      // by node
    std::map<std::pair<NodeRank, LaneIndex>, std::uint32_t> used = {};  // the last use of a token
    bool over = false;  // measuring: its tokens stay used up, should the same exam go on
  };

  const std::shared_ptr<const KeyPair> own_;
  mutable std::mutex mutex_;
  std::map<JobId, Admitted> jobs_;
};

}  // namespace tributary
