// A job as the registry keeps it forever, and texts about it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "common/files/checkpoint_manifest.h"
#include "common/wire/messages.h"

namespace tributary {

// The nodes of a view, and the first of the views in a row that had them, if any view before had others.
struct ViewNodes {
  std::uint64_t hash = 0;  // members_hash(); 0: there has been no view
  ViewId since;
  Round first;  // from here on they have made all chunks; others may have made some of the round before
};

// Facts that a status says of it: few bytes, whatever the model.
struct JobFacts {
  JobId job;
  std::uint64_t chunk_elements = 0;
  std::uint32_t world_size = 1;
  std::uint64_t edition = 0;  // counts its saves: of two copies the higher one is newer
  ViewId view;                // highest view ever given out: persisted before it is used
  Round committed;            // last committed consistent snapshot; 0: none
  bool initialised = false;   // a snapshot was ever committed
  bool provisional = false;   // a view began with that round before it was committed: the one before is still there
  bool finished = false;
  // Node ranks of the last view, ascending; empty after a clean stop.
  std::vector<std::uint32_t> members;
  ViewNodes view_nodes;        // of the last view, whatever came then
  std::string last_stop;       // why the last view that ended cleanly did
  ComputeKinds computed_with;  // what ranks computed the state's gradients with
};

struct JobRecord : JobFacts {
  std::string job_json;
  std::vector<TensorSpec> tensors;
  std::vector<ChunkOwner> owners;
  RankStates rank_states;  // kept with the committed snapshot
};

// Returns whether the job has ever had state.
inline bool has_progress(const JobFacts& record) {
  return record.initialised || record.committed.value != 0;
}

// The servers that have chunks of it.
std::set<std::uint16_t> shards_of(const JobRecord& record);
bool has_chunks(const JobRecord& record, std::uint16_t server);

// Returns a hash of node ranks (ascending) that distinguishes views by their nodes (JobWelcome::members). `since` also
// distinguishes views of the same nodes with others between them: the others may have repeated rounds that these know.
std::uint64_t members_hash(const std::vector<std::uint32_t>& nodes, ViewId since = {});

}  // namespace tributary
