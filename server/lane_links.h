// LaneLinks: the workers on this machine that a lane shares memory with (common/local_link.h): the lane's listening
// socket, requests under way, and a table by (job, node). Thread rule: the lane's thread.
//
// Which peer a link belongs to is learned from its messages: each names the link, and the answer goes to whoever sent
// it. What a peer pushed is read from its memory where it lies; a held frame keeps the mapping alive (a Payload owns a
// share of it), so a worker that dies or unmaps changes nothing.
//
// An answer is a place in the pool's memory, and takes no reference to the buffer. That is safe because only the step
// of the next round writes there, which waits for the next push of every node, and a node makes that one only after it
// has read this answer; a second copy of an answer is recognised by its version and not read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/buffer_pool.h"
#include "common/local_link.h"
#include "common/payload.h"

namespace tributary {

class LaneLinks {
 public:
  static constexpr std::size_t kMaxPending = 64;   // connections whose request has not come yet
  static constexpr std::uint64_t kPauseMs = 1000;  // without accepting, when the process has no descriptors left

  // The pool of a job's buffers, if this lane has the job in that view and with that node; else what is wrong.
  using FindPool = std::function<Result<BufferPool*>(const LinkRequest&)>;

  // Without it nobody can link, and everything goes over sockets.
  Status listen(std::string name);
  const std::string& name() const { return name_; }  // empty: not listening

  void add_poll_items(std::vector<zmq::pollitem_t>& items, std::uint64_t now_ms) const;
  // Accepts, reads requests, replies. The pools must live until drop().
  void serve(std::uint64_t now_ms, const FindPool& find_pool);
  bool pending() const { return !pending_.empty(); }  // something will be overdue

  // A message of `from` names a link: from now on it is this peer's. kInvalidArgument if there is none of that number
  // for the message's job, view and node.
  Status bind(PeerId from, const ChunkKey& key, const PayloadPlace& place);
  // What a bound message pushes. kInvalidArgument if it does not lie in a region of that link.
  Result<Payload> payload(const ChunkKey& key, const PayloadPlace& place) const;
  // Where `to` finds `bytes` in the job's buffers; bytes 0: it shares none, or they are not in those.
  PayloadPlace place(PeerId to, const ChunkKey& key, std::span<const std::byte> bytes) const;

  // The job's view is over.
  void drop(JobId job);

  std::size_t size() const { return links_.size(); }
  std::size_t size_of(JobId job) const;
  std::uint64_t mapped_bytes() const;  // of the workers' memory

 private:
  struct Pending {
    FileDescriptor socket;
    std::uint64_t until_ms = 0;
  };
  struct Link {
    std::uint32_t number = 0;
    ViewId view;
    PeerId peer;
    BufferPool* buffers = nullptr;
    std::vector<std::shared_ptr<const SharedMemory>> regions;
  };
  using Key = std::pair<JobId, NodeRank>;

  LinkReply grant(LinkReceived<LinkRequest>& request, const FindPool& find_pool, FileDescriptor& buffers);
  const Link* find(const ChunkKey& key) const;

  std::string name_;
  FileDescriptor listener_;
  std::uint64_t paused_until_ms_ = 0;
  std::vector<Pending> pending_;
  std::map<Key, Link> links_;
  std::uint32_t next_number_ = 1;
};

}  // namespace tributary
