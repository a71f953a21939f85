// Copies of snapshots on other servers (docs/copies.md). A server reads another one's snapshot through that
// one's port for copies, a chunk at a time; the coordinator says who reads what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/base/result.h"

namespace tributary {

inline constexpr std::size_t kMaxChunkEntries = 1u << 17;  // of a stored chunk: arrays, and a residual a node
inline constexpr std::size_t kMaxEntryKey = 64;            // bytes

struct ServerEntry {
  ShardIndex shard;
  std::string copy_endpoint;  // as in ServerHello
  std::string key;            // likewise

  static void fields(auto& m, auto&& field) {
    field(m.shard, TRIB_WIRE(Shard));
    field(m.copy_endpoint, TRIB_WIRE(CopyEndpoint), AtMost{kMaxNameBytes, "a server's endpoint for copies"});
    field(m.key, TRIB_WIRE(Key), AtMost{kMaxNameBytes, "a server's key"});
  }
  bool operator==(const ServerEntry&) const = default;
};
// Coordinator -> servers: the servers that are there, and read each other's snapshots.
struct ServerBook {
  std::vector<ServerEntry> servers;

  static constexpr auto kWire = TRIB_WIRE(ServerBook);
  static void fields(auto& m, auto&& field) {
    field(m.servers, TRIB_WIRE(Servers), AtMost{kMaxShards, "the list of servers"});
  }
};
// Coordinator -> server: keep a copy of this part of a snapshot. Repeated until it is answered.
struct CopySnapshot {
  JobId job;
  Round round;
  ShardIndex shard;   // whose part
  ServerEntry from;   // the server that has it
  ViewId view;        // for the answer
  bool paced = true;  // training goes on: its messages go first

  static constexpr auto kWire = TRIB_WIRE(CopySnapshot);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.shard, TRIB_WIRE(Shard));
    field(m.from, TRIB_WIRE(From));
    field(m.view, TRIB_WIRE(View));
    field(m.paced, TRIB_WIRE(Paced));
  }
};
// Server -> coordinator: the answer, when the copy is durable, or cannot be had.
struct SnapshotCopied {
  JobId job;
  Round round;
  ShardIndex shard;
  ViewId view;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  bool unreadable = false;

  static constexpr auto kWire = TRIB_WIRE(SnapshotCopied);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.shard, TRIB_WIRE(Shard));
    field(m.view, TRIB_WIRE(View));
    field(m.ok, TRIB_WIRE(Ok));
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.unreadable, TRIB_WIRE(Unreadable));
  }
};
// Server -> server: of your snapshot of this round, the chunk at this place among its chunks.
struct WantChunk {
  JobId job;
  Round round;
  ShardIndex shard;  // whose part
  std::uint32_t place = 0;

  static constexpr auto kWire = TRIB_WIRE(WantChunk);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.shard, TRIB_WIRE(Shard));
    field(m.place, TRIB_WIRE(Place));
  }
  bool operator==(const WantChunk&) const = default;
};
// The answer. Frames follow: the values of the chunk's entries (server/chunk/stored_chunk.h), one for each key.
struct CopiedChunk {
  WantChunk want;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  // The snapshot's:
  std::string job_name;
  std::uint64_t layout_hash = 0;
  std::string optimizer;
  std::uint32_t chunks = 0;
  ChunkIndex chunk;
  std::vector<std::vector<std::byte>> keys;

  static constexpr auto kWire = TRIB_WIRE(CopiedChunk);
  static void fields(auto& m, auto&& field) {
    field(m.want, TRIB_WIRE(Want));
    field(m.ok, TRIB_WIRE(Ok));
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.job_name, TRIB_WIRE(JobName), AtMost{kMaxNameBytes, "the job's name"});
    field(m.layout_hash, TRIB_WIRE(LayoutHash));
    field(m.optimizer, TRIB_WIRE(Optimizer), AtMost{kMaxNameBytes, "the optimizer's name"});
    field(m.chunks, TRIB_WIRE(Chunks));
    field(m.chunk, TRIB_WIRE(Chunk));
    field(m.keys, TRIB_WIRE(Keys), AtMost{kMaxChunkEntries, "the list of a chunk's entries"},
          AtMost{kMaxEntryKey, "the key of an entry"});
  }
};

}  // namespace tributary
