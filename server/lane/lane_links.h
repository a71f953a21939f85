// LaneLinks: the workers on this machine that a lane shares memory with (common/wire/local_link.h): the lane's
// listening socket, requests under way, and a table by (job, node). Thread rule: the lane's thread.
//
// A link belongs to the peer whose messages name it, and answers go to their sender. A push is read from the peer's
// memory where it lies. A held frame keeps the mapping alive (a Payload owns a share of it), so a worker that dies or
// unmaps changes nothing.
//
// An answer is a place in the pool's memory and a share in its buffer, which the worker gives back with its next
// message (told_places.h). A link's socket stays open on both sides: when the worker's end is gone, all its shares are.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/daemon/accept_pause.h"
#include "common/system/buffer_pool.h"
#include "common/wire/local_link.h"
#include "common/wire/payload.h"
#include "server/lane/lane_jobs.h"

namespace tributary {

class LaneLinks {
 public:
  static constexpr std::size_t kMaxPending = 64;  // connections whose request has not come yet

  // Returns the job's pool, or an error if this lane does not have the job in that view and with that node.
  using FindPool = std::function<Result<LaneJobs::Shared>(const LinkRequest&)>;

  explicit LaneLinks(ToldPlaces& told) : told_(told) {}

  // Begins to listen. Without it there are no links, and all payloads go over sockets.
  Status listen(std::string name);
  const std::string& name() const { return name_; }  // empty: not listening

  void add_poll_items(std::vector<zmq::pollitem_t>& items, std::uint64_t now_ms) const;
  // Accepts, reads requests, replies; notices closed ends. The pools must live as long as their buffers are shared.
  void serve(std::uint64_t now_ms, const FindPool& find_pool);
  bool pending() const { return !pending_.empty(); }  // something will be overdue

  // Returns the bytes at that place, not copied. They belong to a message only if that is bound. kInvalidArgument: the
  // place does not lie in a region of that link.
  Result<Payload> payload(const PayloadPlace& place) const;

  // Drops links of views that are over. Call it when a view has ended.
  void forget_those_over();
  // Drops all links, because the lane ends and overwrites nothing any more.
  void end();

  std::uint64_t mapped_bytes() const;  // of the workers' memory

 private:
  struct Pending {
    FileDescriptor socket;
    std::uint64_t until_ms = 0;
  };
  struct Peer {
    FileDescriptor socket;                                     // until the worker's end is gone
    std::vector<std::shared_ptr<const SharedMemory>> regions;  // until the view is over
  };

  LinkReply grant(LinkReceived<LinkRequest>& request, const FindPool& find_pool, FileDescriptor& buffers);

  std::string name_;
  FileDescriptor listener_;
  AcceptPause pause_;
  std::vector<Pending> pending_;
  ToldPlaces& told_;
  std::map<std::uint32_t, Peer> peers_;  // by link
};

}  // namespace tributary
