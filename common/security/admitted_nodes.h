// AdmittedNodes: the peers whose connections a server's lanes accept: the nodes of the views that are open here, by the
// coordinator's word. Each message is authorized separately. Thread rule: any.
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
  // own: this server's pair, which verifies tokens; null: there are no keys.
  explicit AdmittedNodes(std::shared_ptr<const KeyPair> own) : own_(std::move(own)) {}

  // Admits a view's nodes. keys: by node. Tokens of its job's earlier views are invalid from then on.
  void set(JobId job, ViewId view, const std::vector<std::string>& keys);
  // Admits measuring workers (docs/doctor.md) like a job of id 0, until measure_no_more().
  void measure(std::uint32_t diagnosis, const std::vector<std::string>& keys) { set(JobId(), ViewId(diagnosis), keys); }
  void measure_no_more();
  // Returns whether the peer with this key may send measuring messages. key: "" without keys.
  bool may_measure(const std::string& key) const;
  // Removes jobs that are not open any more.
  void keep(const std::function<bool(JobId)>& open);

  // Number of nodes of views that this key admits, or that are admitted in all.
  std::size_t nodes(const std::string& key) const;
  std::size_t nodes() const;
  // Checks whether a peer with this key is admitted. kInvalidArgument: it is not.
  Status admit(const std::string& key) const;
  // Checks and consumes a token. Returns the key of its node. kMalformed, kInvalidArgument: the peer is not admitted.
  Result<std::string> admit(const DataToken& token, std::string_view proof);

 private:
  struct Admitted {
    ViewId view;
    std::vector<std::string> keys;                                      // by node
    std::map<std::pair<NodeRank, LaneIndex>, std::uint32_t> used = {};  // the last use of a token
    bool over = false;  // measuring: its tokens stay used up, should the same diagnosis continue
  };

  const std::shared_ptr<const KeyPair> own_;
  mutable std::mutex mutex_;
  std::map<JobId, Admitted> jobs_;
};

}  // namespace tributary
