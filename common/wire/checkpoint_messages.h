// Checkpoints: coordinator -> servers, each answered with CheckpointDone (server/coordinator/orders/checkpoints.cc;
// schema/control.capnp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/message_fields.h"
#include "common/wire/copy_messages.h"
#include "common/wire/record_messages.h"

namespace tributary {

inline constexpr std::size_t kMaxControlBytes = 64u << 20;  // a layout of a million chunks fits; bounds ZMQ_MAXMSGSIZE

// Writes the receiver's part of a state into `directory`, which every server sees: of this complete snapshot in its
// store, or, with a view, of what it has in memory at that round.
struct WriteCheckpoint {
  std::uint64_t operation = 0;
  JobId job;
  Round round;
  std::string directory;  // PATH/NAME-round-R.partial
  ViewId view = {};       // 0: out of the store

  bool from_memory() const { return view != ViewId(); }
  static constexpr auto kWire = TRIB_WIRE(WriteCheckpoint);
  static void fields(auto& m, auto&& field) {
    field(m.operation, TRIB_WIRE(Operation));
    field(m.job, TRIB_WIRE(Job));
    field(m.round, TRIB_WIRE(Round));
    field(m.directory, TRIB_WIRE(Directory), AtMost{kMaxPathBytes, "a checkpoint's path"});
    field(m.view, TRIB_WIRE(View));
  }
};
// To server 0, when all parts are there: adds the large parts of the ranks' states, which the manifest names, and makes
// the directory the checkpoint `target`. keep: this checkpoint and the job's others that rotate are so many at most in
// their folder, the newest; 0: this one does not rotate, and stays until somebody removes it.
struct SealCheckpoint {
  std::uint64_t operation = 0;
  JobId job;
  std::string directory, target;
  std::string manifest;
  std::uint32_t keep = 0;

  static constexpr auto kWire = TRIB_WIRE(SealCheckpoint);
  static void fields(auto& m, auto&& field) {
    field(m.operation, TRIB_WIRE(Operation));
    field(m.job, TRIB_WIRE(Job));
    field(m.directory, TRIB_WIRE(Directory), AtMost{kMaxPathBytes, "a checkpoint's path"});
    field(m.target, TRIB_WIRE(Target), AtMost{kMaxPathBytes, "a checkpoint's path"});
    field(m.manifest, TRIB_WIRE(Manifest), AtMost{kMaxControlBytes, "a checkpoint's manifest"});
    field(m.keep, TRIB_WIRE(Keep));
  }
};
// Loads the receiver's chunks from the files of the checkpoint `directory`, as a snapshot of this job in its store.
struct LoadCheckpoint {
  std::uint64_t operation = 0;
  JobId job;
  std::string name;      // the job's, which the checkpoint's may not be
  std::string manifest;  // checksum of the manifest that the coordinator saw
  std::string directory;
  std::vector<ChunkOwner> owners;
  bool parts = false;  // and the large parts of what ranks keep

  static constexpr auto kWire = TRIB_WIRE(LoadCheckpoint);
  static void fields(auto& m, auto&& field) {
    field(m.operation, TRIB_WIRE(Operation));
    field(m.job, TRIB_WIRE(Job));
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the job's name"});
    field(m.manifest, TRIB_WIRE(Manifest), AtMost{kMaxNameBytes, "the manifest's checksum"});
    field(m.directory, TRIB_WIRE(Directory), AtMost{kMaxPathBytes, "a checkpoint's path"});
    field.inside(TRIB_WIRE(Owners), [&](const auto& layout) { layout.owners(m.owners); });
    field(m.parts, TRIB_WIRE(Parts));
  }
};
// A part of a snapshot, and the server that has it, or a copy.
struct DealtPart {
  ShardIndex shard;
  ServerEntry from;

  static void fields(auto& m, auto&& field) {
    field(m.shard, TRIB_WIRE(Shard));
    field(m.from, TRIB_WIRE(From));
  }
};
// A job's chunks go to other servers (docs/failover.md): reads those that the receiver owns now out of a snapshot of `before`,
// and makes them a snapshot of `job` in its store.
struct DealChunks {
  std::uint64_t operation = 0;
  JobId job;
  std::string name;  // of both
  JobId before;
  Round round;
  std::vector<ChunkOwner> owners_before, owners;  // as many
  std::vector<DealtPart> parts;                   // by shard, ascending
  std::vector<LargePart> large;                   // of what ranks keep, which the receiver's store has for `before`

  static constexpr auto kWire = TRIB_WIRE(DealChunks);
  static void fields(auto& m, auto&& field) {
    field(m.operation, TRIB_WIRE(Operation));
    field(m.job, TRIB_WIRE(Job));
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "the job's name"});
    field(m.before, TRIB_WIRE(Before));
    field(m.round, TRIB_WIRE(Round));
    field.inside(TRIB_WIRE(OwnersBefore), [&](const auto& layout) { layout.owners(m.owners_before); });
    field.inside(TRIB_WIRE(Owners), [&](const auto& layout) { layout.owners(m.owners); });
    field(m.parts, TRIB_WIRE(Parts), AtMost{kMaxShards, "the list of parts"});
    field(m.large, TRIB_WIRE(Large), AtMost{kMaxParts, "the list of large parts"});
  }
  void check() const {
    if (owners.size() != owners_before.size()) throw Malformed{"the chunks are not as many as before"};
  }
};
// Drops data that is no longer needed: the state of a job that was replaced or never became one (0: none), and the
// receiver's files in a directory (empty: none). Not answered.
struct DropCheckpoint {
  JobId job;
  std::string directory;

  static constexpr auto kWire = TRIB_WIRE(DropCheckpoint);
  static void fields(auto& m, auto&& field) {
    field(m.job, TRIB_WIRE(Job));
    field(m.directory, TRIB_WIRE(Directory), AtMost{kMaxPathBytes, "a checkpoint's path"});
  }
};
struct CheckpointDone {  // server -> coordinator
  std::uint64_t operation = 0;
  bool ok = true;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::uint64_t bytes = 0;  // written: of the file, and its checksum
  std::string checksum;
  bool unchanged = false;  // written: the file of an earlier checkpoint was taken; sealed: the checkpoint was there

  static constexpr auto kWire = TRIB_WIRE(CheckpointDone);
  static void fields(auto& m, auto&& field) {
    field(m.operation, TRIB_WIRE(Operation));
    field(m.ok, TRIB_WIRE(Ok));
    field(m.code, TRIB_WIRE(Code));
    field(m.message, TRIB_WIRE(Message), CutAt{});
    field(m.bytes, TRIB_WIRE(Bytes));
    field(m.checksum, TRIB_WIRE(Checksum), AtMost{kMaxNameBytes, "a file's checksum"});
    field(m.unchanged, TRIB_WIRE(Unchanged));
  }
};

}  // namespace tributary
