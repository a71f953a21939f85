// Operators' orders to the coordinator about checkpoints, and their status.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/files/checkpoint_manifest.h"

namespace tributary {

struct SaveOrder {
  std::string job;
  std::string directory;   // absolute; every server sees it under this path
  std::string created;     // now, for the manifest
  bool committed = false;  // the newest committed snapshot as it is; else the state at a round from now
  bool scheduled = false;  // by the job's [checkpoint]: gives way to a person's order
  std::uint32_t keep = 0;  // SealCheckpoint::keep
};

struct RestoreOrder {
  Manifest manifest;  // of a complete checkpoint
  std::string manifest_checksum;
  std::string directory;  // the checkpoint's; absolute
  std::string name;       // of the job to be
  bool force = false;     // a stopped job of that name, with its state, is replaced
};

enum class CheckpointKind {
  kSave,
  kRestore,
  kDeal,  // no checkpoint: the chunks of a job go to other servers, out of a snapshot
};

enum class CheckpointStep { kWaiting, kWriting, kSealing, kLoading, kDone, kFailed };
const char* name_of(CheckpointStep step);
const char* name_of(CheckpointKind kind);

// A save, a restore or a deal, under way or over.
struct CheckpointStatus {
  std::uint64_t id = 0;
  CheckpointKind kind = CheckpointKind::kSave;
  std::string job;
  CheckpointStep step = CheckpointStep::kWaiting;
  Round round;
  std::string path;         // of the checkpoint
  std::string message;      // why it failed
  std::string lacks;        // saved: what of the snapshot is not in it; empty: nothing
  std::uint64_t bytes = 0;  // written, or loaded, so far
  bool unchanged = false;   // saved: it was there already
  std::uint64_t begun_ms = 0, ended_ms = 0;
  std::set<std::uint16_t> awaited;  // servers

  bool loads() const { return kind != CheckpointKind::kSave; }
  bool over() const { return step == CheckpointStep::kDone || step == CheckpointStep::kFailed; }
};

}  // namespace tributary
