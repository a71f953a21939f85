// LaneLinks: the workers on this machine that a lane shares memory with (common/wire/local_link.h): the lane's
// listening socket, requests under way, and a table by (job, node). Thread rule: the lane's thread.
//
// Which peer a link belongs to is learned from its messages: each names the link, and the answer goes to whoever sent
// it. What a peer pushed is read from its memory where it lies; a held frame keeps the mapping alive (a Payload owns a
// share of it), so a worker that dies or unmaps changes nothing.
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

#include "common/base/buffer_pool.h"
#include "common/daemon/accept_pause.h"
#include "common/wire/local_link.h"
#include "common/wire/payload.h"
#include "server/lane/lane_jobs.h"

namespace tributary {

class LaneLinks {
 public:
  static constexpr std::size_t kMaxPending = 64;  // connections whose request has not come yet

  // Of the job, if this lane has it in that view and with that node; else what is wrong.
  using FindPool = std::function<Result<LaneJobs::Shared>(const LinkRequest&)>;

  explicit LaneLinks(ToldPlaces& told) : told_(told) {}

  // Without it nobody can link, and everything goes over sockets.
  Status listen(std::string name);
  const std::string& name() const { return name_; }  // empty: not listening

  void add_poll_items(std::vector<zmq::pollitem_t>& items, std::uint64_t now_ms) const;
  // Accepts, reads requests, replies; notices who is gone. The pools must live as long as anybody shares their buffers.
  void serve(std::uint64_t now_ms, const FindPool& find_pool);
  bool pending() const { return !pending_.empty(); }  // something will be overdue

  // What a bound message pushes. kInvalidArgument if it does not lie in a region of that link.
  Result<Payload> payload(const PayloadPlace& place) const;

  // What views that are over pushed over: call it when one has ended.
  void forget_those_over();
  // The lane ends: nothing is written any more, so that nothing needs to be kept from it.
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
