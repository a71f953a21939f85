// Checkpoints as directories: found, opened, checked and finished. Anybody who sees the files can do this: the servers,
// and the tool where no daemon runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/files/checkpoint_manifest.h"
#include "common/system/folder.h"

namespace tributary {

// Reads and checks the manifest of a complete checkpoint; not its shard files. kNotFound: there is none at `path`;
// kStore: it is incomplete, damaged, or contradicts itself.
Result<Manifest> open_checkpoint(const std::string& path);

// Returns the shards with a file.
std::set<ShardIndex> shards_of(const Manifest& manifest);

// The checksum that COMPLETE has of the manifest.
Result<std::string> manifest_checksum(const std::string& path);

// A directory's line in `list`.
struct CheckpointSummary {
  std::string path, name;            // name: of the directory
  std::optional<Manifest> manifest;  // if it is complete
  std::string flaw;                  // else
  std::uint64_t bytes = 0;           // of its files, as they are
};
// All checkpoints in `directory`, whole or not, by job and round. kNotFound, kIo.
Result<std::vector<CheckpointSummary>> list_checkpoints(const std::string& directory);
// Does it look like a checkpoint, whole or not?
bool is_checkpoint(const std::string& path);

struct Verification {
  std::vector<std::string> findings;                     // empty: all is well
  std::uint64_t chunks = 0, large_parts = 0, bytes = 0;  // that are whole
};
// Reads every byte (server/checkpoint/checkpoint_reader.h). Goes on after a finding as long as that makes sense.
Verification verify_checkpoint(const std::string& path);

// Makes `partial`, in which all shard files are written, the checkpoint `target` (both in one directory). True: target
// was there already with the same contents, and partial is gone. kStore: another checkpoint is there; kNotFound: a
// shard's file is not where this process looks. write_part: writes the file of a large part that the manifest names into
// a folder, when all shard files are seen; if it is not sealed then, these files go. None: they are there.
// rotates: marks a new one as a checkpoint that rotate_checkpoints() may remove; one with the mark that was there with
// another state gives way. Else the mark of one that was there goes.
using WritePart = std::function<Status(const std::string& folder, const LargePart& large)>;
Result<bool> seal_checkpoint(const std::string& partial, const std::string& target, const std::string& manifest_json,
                             const WritePart& write_part = {}, bool rotates = false);

// Removes the checkpoints that rotate of the job of `newest` (a name, checkpoint_name()) from the folder, but for that
// one and those that were completed last, `keep` in all, and those that were never finished or whose removal was cut
// off. Files that are no checkpoint's stay, and their folder. Returns the names of those removed.
std::vector<std::string> rotate_checkpoints(const Folder& folder, const std::string& newest, std::uint32_t keep);

}  // namespace tributary
