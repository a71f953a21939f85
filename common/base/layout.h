// The layout: tensors -> one flat fp32 parameter space -> chunks -> shards and lanes. Pure, deterministic, persisted.
//
//   tensor 0 | pad | tensor 1 | pad | ...        every tensor starts at a multiple of kTensorAlign elements
//   [ chunk 0 )[ chunk 1 )[ chunk 2 ) ...        every chunk has chunk_elements elements, the last may be shorter
//
// Where a tensor has other holders than the one before it, a chunk ends early and the next begins, so that all of a
// chunk has the same holders. A node works on the part of the layout that its ranks hold (part()): a layout of its own,
// with the same chunks under other numbers.
//
// Padding elements have gradient 0 and belong to no tensor; digests and exports skip them. Chunk c is owned by exactly
// one (shard, lane). With equal weights the assignment is round-robin, so that the tensors a backward pass finishes
// together are spread over all servers. With weights each chunk goes to the shard below its share that is due first:
// this is balanced to within one chunk at every prefix. Weights come from the placement
// (server/coordinator/cluster/job_placement.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/base/result.h"

namespace tributary {

inline constexpr std::size_t kTensorAlign = 16;              // elements; 64 bytes of fp32
inline constexpr std::size_t kMaxTensors = 1u << 20;         // bound on a declaration
inline constexpr std::uint64_t kMaxParameters = 1ull << 40;  // elements
inline constexpr std::size_t kMaxChunkBytes = 64u << 20;     // of fp32; also bounds ZMQ_MAXMSGSIZE
inline constexpr std::size_t kMinChunkBytes = 4u << 10;
inline constexpr std::uint64_t kMaxChunks = 1u << 20;  // a layout must fit a control message (kMaxControlBytes)
inline constexpr std::uint32_t kMaxGroups = 128;       // of tensors; a push has the settings of each
inline constexpr std::uint32_t kMaxModelRanks = 1024;  // ranks that hold one replica of a model together

struct TensorSpec {
  std::string name;                         // unique within the job
  std::vector<std::uint64_t> shape;         // product = elements; empty shape is a scalar (1 element)
  std::uint32_t group = 0;                  // of hyper-parameters: 0 [optimizer], k the job's k-th [[groups]]
  std::vector<std::uint32_t> holders = {};  // model ranks (common/base/model_ranks.h), ascending; empty: all of them
  bool operator==(const TensorSpec&) const = default;
  std::uint64_t elements() const;
  bool held_by(std::uint32_t model_rank) const;
  bool held_by_any(std::span<const std::uint32_t> model_ranks) const;
  // Returns whether rank `rank` holds the tensor. model_ranks: by rank; empty: every rank holds everything.
  bool held_at(std::span<const std::uint32_t> model_ranks, std::size_t rank) const {
    return model_ranks.empty() || held_by(model_ranks[rank]);
  }

  static void fields(auto& m, auto&& field) {
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxNameBytes, "a tensor's name"});
    field(m.shape, TRIB_WIRE(Shape), AtMost{kMaxShapeDims, "a tensor's shape"});
    field(m.group, TRIB_WIRE(Group));
    field(m.holders, TRIB_WIRE(Holders), AtMost{kMaxModelRanks, "a tensor's holders"});
  }
};

// Returns whether some tensors have explicit holders. Then chunks are not all of one size.
bool have_holders(std::span<const TensorSpec> tensors);

struct ChunkOwner {
  ShardIndex shard;
  LaneIndex lane;
  bool operator==(const ChunkOwner&) const = default;
  // Returns which of a worker's lanes has the chunks of this server lane.
  std::uint16_t worker_lane(std::uint16_t lanes) const { return static_cast<std::uint16_t>(lane.value % lanes); }
};

struct ChunkRange {
  std::uint64_t begin = 0;  // first element in the flat space
  std::uint64_t elements = 0;
};

// One shard's place in the assignment.
struct ShardSlots {
  std::uint16_t lanes = 1;
  double weight = 1.0;  // share of the bytes relative to the other shards; 0: owns none
};

inline constexpr std::uint64_t kMaxChunkElements = kMaxChunkBytes / sizeof(float);

class Layout {
 public:
  // Errors: kInvalidArgument for no tensors, a duplicate or empty name, a zero dimension, too many parameters or
  // groups, holders that are not ascending, no shards or none with a weight above 0, chunk_elements not a multiple of
  // kTensorAlign or out of bounds.
  static Result<Layout> make(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements,
                             std::span<const ShardSlots> shards);
  // Makes a layout without owners (all chunks belong to one lane of one shard), where only tensors and chunks matter.
  // The largest chunks fit every valid declaration: the default serves to check one, or to compute flat_elements().
  static Result<Layout> unowned(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements = kMaxChunkElements);
  // Makes a persisted or received layout, with its `owners`. Same errors, and kInvalidArgument if owners.size() !=
  // number of chunks.
  static Result<Layout> with_owners(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements,
                                    std::vector<ChunkOwner> owners);
  // Returns the part that ranks with these model ranks hold; no model ranks: all of it. None: they hold nothing.
  // REQUIRES: this is no part.
  std::optional<Layout> part(std::span<const std::uint32_t> model_ranks) const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<ChunkOwner>& owners() const { return owners_; }
  std::uint64_t chunk_elements() const { return chunk_elements_; }
  std::uint64_t flat_elements() const { return flat_elements_; }  // with padding
  std::uint64_t parameters() const { return parameters_; }        // without padding
  std::size_t chunks() const { return owners_.size(); }
  ChunkRange chunk(ChunkIndex c) const;
  ChunkOwner owner(ChunkIndex c) const { return owners_[c.value]; }
  std::uint64_t tensor_offset(std::size_t tensor) const { return offsets_[tensor]; }
  // Tensors that overlap chunk c, and chunks that overlap tensor t: half-open index ranges.
  std::pair<std::size_t, std::size_t> tensors_of(ChunkIndex c) const;
  std::pair<std::uint32_t, std::uint32_t> chunks_of(std::size_t tensor) const;
  // The groups of the tensors that overlap chunk c, ascending. The second overwrites `groups`, whose memory it uses.
  std::vector<std::uint32_t> groups_of(ChunkIndex c) const;
  void groups_of(ChunkIndex c, std::vector<std::uint32_t>& groups) const;
  // Convert a part's number of a chunk or tensor to that in the whole layout, and back; none: the part does not have
  // it. In a whole layout the numbers are the same.
  bool is_part() const { return !whole_chunks_.empty(); }
  ChunkIndex in_whole(ChunkIndex c) const { return whole_chunks_.empty() ? c : whole_chunks_[c.value]; }
  std::optional<ChunkIndex> in_part(ChunkIndex of_whole) const;
  std::size_t tensor_in_whole(std::size_t tensor) const {
    return whole_tensors_.empty() ? tensor : whole_tensors_[tensor];
  }
  std::optional<std::size_t> tensor_in_part(std::size_t of_whole) const;
  // Chunks of one (shard, lane), ascending.
  std::vector<ChunkIndex> chunks_owned_by(ShardIndex shard, LaneIndex lane) const;

  // XXH3-64 over names, shapes, chunk_elements, and groups and holders where there are some (not over owners: the same
  // data on other servers is the same layout).
  std::uint64_t hash() const { return hash_; }

 private:
  Layout() = default;
  void place(const TensorSpec& tensor);  // behind those that have their places
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::uint64_t> begins_;  // of every chunk, and where the last one ends
  std::vector<ChunkOwner> owners_;
  std::vector<ChunkIndex> whole_chunks_;  // of a part: their numbers in the whole
  std::vector<std::size_t> whole_tensors_;
  std::uint64_t chunk_elements_ = 0;
  std::uint64_t flat_elements_ = 0;
  std::uint64_t parameters_ = 0;
  std::uint64_t hash_ = 0;
};

// Bound on the fp32 bytes of a default chunk: on hosts a larger one is no faster, but devices pay a launch, a copy and
// a collective for each.
inline constexpr std::uint64_t kLargestChunkBytes = 1u << 20, kLargestDeviceChunkBytes = 4u << 20;

// Default chunk size in elements, a power of two of bytes.
//
// On one machine: the largest such that every lane of every server gets at least 8 chunks (so that pushes, steps and
// answers overlap), within 64 KiB .. `largest` of fp32; a message costs more there than the wait for its bytes.
//
// Over a network of k servers and n nodes the last answers of a round can begin only when the last pushes are in: then
// a server still sends n answers of its last chunk, and up to 2k chunks were in the window. So a round of M bytes takes
// about 1 + (2k + n) * chunk / M times as long as its bytes. The chunk is chosen to make the excess 2 % (the nearest
// power of two), within 16 KiB .. `largest`, and no lane gets fewer than 8.
std::uint64_t default_chunk_elements(std::uint64_t flat_elements, std::span<const ShardSlots> shards,
                                     std::uint32_t nodes, bool one_machine, std::uint64_t largest = kLargestChunkBytes);

// The same for the buckets of an all-reduce job: from 512 KiB, at least 8 of them, to 16 MiB, at least 16. It does not
// depend on the number of nodes: a checkpoint fits any.
std::uint64_t default_bucket_elements(std::uint64_t flat_elements);

// Makes the layout of an all-reduce job, whose chunks (buckets) have no owner: all belong to one lane of one shard.
// chunk_bytes: as JobConfig::chunk_bytes, 0 for the default.
Result<Layout> bucket_layout(std::vector<TensorSpec> tensors, std::uint64_t chunk_bytes);

// Names the first difference between two declarations in a sentence for the trainer that brought `theirs`;
// empty if equal.
std::string describe_difference(std::span<const TensorSpec> ours, std::span<const TensorSpec> theirs);

}  // namespace tributary
