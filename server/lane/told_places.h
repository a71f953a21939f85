// ToldPlaces: the places of answers that workers on this machine get instead of the bytes, and the workers that may
// still read them. Pure: no sockets, no clock; LaneLinks and the simulator drive it. Thread rule: the lane's thread.
//
// A worker may read a place until it acknowledges it, or closes its end of the link; until then the memory stays and is
// not written. Only tell() makes places: it takes a share of the buffer (BufferRef) and numbers it. Every message of
// the worker names the newest number that it has read (PayloadPlace::ticket), which gives back all shares up to it. The
// acknowledgement comes before or with the worker's next push of a chunk. So when a step would write there, the buffer
// is not shared any more, and steps write in place.
//
// A share outlives its view, and the job: a pool's blocks are free when the last share has gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "common/system/buffer_pool.h"
#include "common/wire/messages.h"

namespace tributary {

class ToldPlaces {
 public:
  // Links of views that are over, whose workers have not closed their ends.
  static constexpr std::size_t kMaxOver = 256;

  // Opens a link of this node in this view; an older link of the node is over. chunks: of the job on this lane; they
  // bound the number of unread places. kLimit: more than kMaxOver.
  Result<std::uint32_t> open(JobId job, ViewId view, NodeRank node, const BufferPool& pool, std::size_t chunks);

  // Takes the link and the newest ticket read that a message of `from` names: from now on the link is this peer's.
  // kInvalidArgument: not a link of the message's job, view and node, or a ticket beyond the last one.
  Status bind(PeerId from, const ChunkKey& key, const PayloadPlace& place);
  // Returns the place of these bytes for `to`. bytes 0: there is none, send the bytes, as the worker shares nothing or
  // has not read for long. Nothing: the worker's end is gone, and with it the reader.
  std::optional<PayloadPlace> tell(PeerId to, const ChunkKey& key, const BufferRef& payload);

  // The job's view is over: no more places are made, and the existing ones stay.
  void end_view(JobId job);
  // The worker's end is gone: its places have no reader. Its pushes may still be on their way.
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
