// ToldPlaces: where answers lie that workers on this machine were told instead of their bytes, and who may still read
// them. Pure: no sockets, no clock; LaneLinks and the simulator drive the same class. Thread rule: the lane's thread.
//
// Whoever is told a place may read it until it has said that it has, or until its end of the link is gone; until then
// nobody writes there and the memory stays. So a place is made by tell() alone, which takes a share of the buffer
// (BufferRef) and numbers it; every message of the worker names the newest number that it has read (PayloadPlace::
// ticket), which gives back all shares up to it. A worker says so before or with its next push of a chunk: by the time
// that a step would write there, nobody shares the buffer any more, and steps write in place.
//
// A share outlives the view in which it was told, and the job: a pool's blocks are free when the last share has gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/buffer_pool.h"
#include "common/wire/messages.h"

namespace tributary {

class ToldPlaces {
 public:
  // Links of views that are over, whose workers have not closed their ends.
  static constexpr std::size_t kMaxOver = 256;

  // A new link of this node in this view; an older one of it is over. chunks: of the job on this lane; they bound how
  // many places may be told and unread. kLimit: more than kMaxOver.
  Result<std::uint32_t> open(JobId job, ViewId view, NodeRank node, const BufferPool& pool, std::size_t chunks);

  // A message of `from` names a link and what was read over it: from now on the link is this peer's.
  // kInvalidArgument: not a link of the message's job, view and node, or more was read than told.
  Status bind(PeerId from, const ChunkKey& key, const PayloadPlace& place);
  // Where `to` finds these bytes; bytes 0: nowhere, send them. The worker shares nothing, or has not read for long.
  // Nothing: its end is gone, and with it whoever would read them.
  std::optional<PayloadPlace> tell(PeerId to, const ChunkKey& key, const BufferRef& payload);

  // The job's view is over: nothing more is told, and what was told stays.
  void end_view(JobId job);
  // The worker's end is gone: nobody reads what it was told. What it pushes may still be on its way.
  void closed(std::uint32_t link);
  // This side ends; nothing is written any more.
  void clear();

  bool current(std::uint32_t link) const;  // of a view that is not over
  std::size_t size() const { return links_.size(); }
  std::size_t size_of(JobId job) const;
  std::size_t unread() const;  // places

 private:
  struct Link {
    std::uint32_t number = 0;
    ViewId view;
    PeerId peer;
    bool reads = true;  // the worker's end is there
    const BufferPool* pool = nullptr;
    std::vector<BufferRef> shares;     // [ticket % size]
    std::uint64_t told = 0, read = 0;  // newest tickets
    void read_up_to(std::uint64_t ticket);
  };
  using Key = std::pair<JobId, NodeRank>;

  Link* find(const ChunkKey& key);
  void end(Link link);

  std::map<Key, Link> links_;  // of views that are not over
  std::vector<Link> over_;     // with a reader and something unread, or whose worker has not gone
  std::uint32_t next_number_ = 1;
};

}  // namespace tributary
