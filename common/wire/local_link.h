// Sets up memory that a worker lane and a server lane on one machine share. Then their messages name the place of a
// payload (PayloadPlace), and no payload byte crosses a socket.
//
// Every server lane listens on a Unix socket with an abstract name, random per process. The name reaches the workers
// with the lane's endpoint. A connection succeeds only in the same network namespace of the same machine, and only
// between processes of the same user, or with one of root's. So nothing needs to be configured; a worker that cannot
// connect uses sockets. Per (job, view, node) and pair of lanes there is one exchange; then the connection stays open,
// only to show when one side is gone:
//
//     worker -> server   LinkRequest + descriptors of the memories that the node's payloads lie in, its "regions"
//     server -> worker   LinkReply   + a descriptor of the memory of the job's buffers
//
// Both sides map what they get for reading only, and accept only memory whose size is sealed
// (common/system/shared_memory.h): whatever the other process does later, the mapping stays valid until it is dropped
// here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/system/file_descriptor.h"
#include "common/system/shared_memory.h"
#include "common/wire/messages.h"

namespace tributary {

inline constexpr std::size_t kMaxLinkRegions = 4;  // parameters (for Init), gradients, frames
// Time that either side waits for the other's part; then both use sockets.
inline constexpr std::uint64_t kLinkPatienceMs = 2000;

struct LinkRequest {
  JobId job;
  ViewId view;
  NodeRank node;
};
struct LinkReply {
  std::uint32_t link = 0;  // 0: refused
  Error why;
};
template <class Message>
struct LinkReceived {
  Message message;
  std::vector<FileDescriptor> fds;
};

// Makes a name that no other lane has.
std::string new_link_name(ShardIndex shard, LaneIndex lane);
// Nothing here waits: the sockets are non-blocking.
Result<FileDescriptor> listen_for_links(const std::string& name);
// Accepts a connection; without descriptor: there is none. kUnavailable: another user's process, which was refused.
// kLimit: no descriptors or memory are left; waiting peers may be accepted later.
Result<FileDescriptor> accept_link(int listener);
// Connects. kUnavailable: no process of this user listens there on this machine.
Result<FileDescriptor> connect_link(const std::string& name);

// Returns whether, after the exchange, the other side still has its end.
bool link_is_open(int socket);

Status send_link(int socket, const LinkRequest& request, std::span<const int> regions);
Status send_link(int socket, const LinkReply& reply, std::span<const int> buffers);
// Nothing if it has not come yet. kUnavailable: the other side is gone. kMalformed, kProtocolVersion.
Result<std::optional<LinkReceived<LinkRequest>>> receive_link_request(int socket);
Result<std::optional<LinkReceived<LinkReply>>> receive_link_reply(int socket);

// The payload at `place` in `memory`; kInvalidArgument unless all of it lies inside.
Result<std::span<const std::byte>> payload_in(const SharedMemory& memory, const PayloadPlace& place);

}  // namespace tributary
