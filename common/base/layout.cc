#include "common/base/layout.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "common/base/assert.h"
#include "common/base/round_up.h"
#include "common/base/utf8.h"

namespace tributary {
namespace {

constexpr std::uint64_t kOverflow = std::numeric_limits<std::uint64_t>::max();

// Makes a name fit for a message: names come from trainers and from the network.
std::string in_quotes(std::string_view name) {
  constexpr std::size_t kShown = 80;
  std::string out = "'";
  for (char c : name.substr(0, kShown)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  out += name.size() > kShown ? "...'" : "'";
  return out;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  constexpr std::size_t kShown = 16;
  std::string out = "[";
  for (std::size_t i = 0; i < std::min(shape.size(), kShown); ++i) {
    out += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return out + (shape.size() > kShown ? ", ...]" : "]");
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  return shape_text({ranks.begin(), ranks.end()});
}

std::string spec_text(const TensorSpec& spec) {
  return in_quotes(spec.name) + " of shape " + shape_text(spec.shape) +
         (spec.group == 0 ? "" : " in group " + std::to_string(spec.group)) +
         (spec.holders.empty() ? "" : " of model ranks " + ranks_text(spec.holders));
}

Status check_tensors(std::span<const TensorSpec> tensors) {
  if (tensors.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no tensors are declared; declare at least one before attaching");
  }
  if (tensors.size() > kMaxTensors) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(tensors.size()) + " tensors are declared; the limit is " + std::to_string(kMaxTensors));
  }
  std::set<std::string_view> names;  // sorted: a hostile peer could choose names with one hash
  std::uint64_t parameters = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& spec = tensors[i];
    if (spec.name.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "tensor " + std::to_string(i) + " has an empty name; give every tensor a name of its own");
    }
    if (!is_utf8(spec.name)) {
      std::string shown = spec.name.substr(0, 80);
      for (char& c : shown) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
      return fail(ErrorCode::kInvalidArgument, "the name of tensor " + std::to_string(i) + ", " + in_quotes(shown) +
                                                   " where ? is a byte above 127, is no UTF-8 text, which checkpoints "
                                                   "need; give it another name");
    }
    if (!names.insert(spec.name).second) {
      return fail(ErrorCode::kInvalidArgument, "tensor " + std::to_string(i) + " has the name " + in_quotes(spec.name) +
                                                   " of an earlier one; give every tensor a name of its own");
    }
    if (spec.group >= kMaxGroups) {
      return fail(ErrorCode::kInvalidArgument,
                  "tensor " + spec_text(spec) + ": groups are numbered from 0 to " + std::to_string(kMaxGroups - 1));
    }
    if (!std::ranges::is_sorted(spec.holders, std::ranges::less_equal()) ||
        (!spec.holders.empty() && spec.holders.back() >= kMaxModelRanks)) {
      return fail(ErrorCode::kInvalidArgument, "tensor " + spec_text(spec) + ": holders are model ranks from 0 to " +
                                                   std::to_string(kMaxModelRanks - 1) +
                                                   ", each once, in ascending order");
    }
    const std::uint64_t elements = spec.elements();
    if (elements == 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "tensor " + spec_text(spec) + " has a dimension of 0; leave empty tensors out of the declaration");
    }
    // The two terms are at most kMaxParameters each, so the sum cannot wrap.
    if (elements > kMaxParameters || parameters + elements > kMaxParameters) {
      return fail(ErrorCode::kInvalidArgument, "with tensor " + spec_text(spec) + " the model has more than " +
                                                   std::to_string(kMaxParameters) + " parameters, the limit");
    }
    parameters += elements;
  }
  return {};
}

Status check_chunk_elements(std::uint64_t chunk_elements) {
  const std::uint64_t low = kMinChunkBytes / sizeof(float), high = kMaxChunkBytes / sizeof(float);
  if (chunk_elements < low || chunk_elements > high || chunk_elements % kTensorAlign != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "a chunk of " + std::to_string(chunk_elements) + " elements is impossible; use a multiple of " +
                    std::to_string(kTensorAlign) + " from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return {};
}

// Shard of every chunk. Chunk c (the (c+1)-th to be dealt) goes to the shard whose next chunk is due first, among those
// that have not yet received their share of c+1 chunks. Dealing only to shards below their share keeps each less than
// one chunk above it; taking the earliest due keeps each less than one chunk below it. (Choosing the greatest deficit
// instead, as the plain smooth weighted round-robin does, lets some weights fall more than one chunk behind.) Ties go
// to the lowest shard: equal weights give c % S. A shard of weight 0 is never below its share.
std::vector<std::uint16_t> deal_chunks(std::uint64_t chunks, std::span<const ShardSlots> shards) {
  double largest = 0.0;
  for (const ShardSlots& s : shards) largest = std::max(largest, s.weight);
  std::vector<double> weight(shards.size());
  double total = 0.0;
  for (std::size_t s = 0; s < shards.size(); ++s) total += weight[s] = shards[s].weight / largest;

  std::vector<double> dealt(shards.size(), 0.0);
  std::vector<std::uint16_t> shard_of(chunks);
  for (std::uint64_t c = 0; c < chunks; ++c) {
    std::size_t best = shards.size();
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const bool below_share = dealt[s] * total < static_cast<double>(c + 1) * weight[s];
      if (!below_share) continue;
      // Due when its share reaches dealt+1 chunks; compared without dividing.
      if (best == shards.size() || (dealt[s] + 1) * weight[best] < (dealt[best] + 1) * weight[s]) best = s;
    }
    TRIB_ASSERT(best < shards.size());  // the shares of c+1 chunks add up to more than the c chunks dealt
    dealt[best] += 1;
    shard_of[c] = static_cast<std::uint16_t>(best);
  }
  return shard_of;
}

std::uint64_t layout_hash(std::span<const TensorSpec> tensors, std::uint64_t chunk_elements) {
  // Lengths go before what they count, so that no two declarations give the same bytes.
  std::vector<std::uint8_t> bytes;
  auto number = [&bytes](std::uint64_t v) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::uint8_t>(v >> (8 * i)));
  };
  number(chunk_elements);
  number(tensors.size());
  for (const TensorSpec& t : tensors) {
    number(t.name.size());
    bytes.insert(bytes.end(), t.name.begin(), t.name.end());
    number(t.shape.size());
    for (std::uint64_t d : t.shape) number(d);
  }
  if (std::ranges::any_of(tensors, [](const TensorSpec& t) { return t.group != 0; })) {
    for (const TensorSpec& t : tensors) number(t.group);
  }
  if (have_holders(tensors)) {
    for (const TensorSpec& t : tensors) {
      number(t.holders.size());
      for (const std::uint32_t holder : t.holders) number(holder);
    }
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

// Calls run(elements) for every longest run of tensors with the same holders, in order. REQUIRES: a valid declaration.
void for_each_run(std::span<const TensorSpec> tensors, auto&& run) {
  std::uint64_t elements = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    elements += round_up(tensors[t].elements(), kTensorAlign);
    if (t + 1 < tensors.size() && tensors[t + 1].holders == tensors[t].holders) continue;
    run(std::exchange(elements, 0));
  }
}

std::uint64_t count_chunks(std::span<const TensorSpec> tensors, std::uint64_t chunk_elements) {
  std::uint64_t chunks = 0;
  for_each_run(tensors, [&](std::uint64_t elements) { chunks += (elements + chunk_elements - 1) / chunk_elements; });
  return chunks;
}

// Returns where every chunk begins, and where the last one ends.
std::vector<std::uint64_t> chunk_begins(std::span<const TensorSpec> tensors, std::uint64_t chunk_elements) {
  std::vector<std::uint64_t> begins{0};
  for_each_run(tensors, [&](std::uint64_t elements) {
    const std::uint64_t end = begins.back() + elements;
    while (end - begins.back() > chunk_elements) begins.push_back(begins.back() + chunk_elements);
    begins.push_back(end);
  });
  return begins;
}

// Returns the place of `value` in an ascending list.
template <class T>
std::optional<std::size_t> position_of(const std::vector<T>& list, const T& value) {
  const auto found = std::ranges::lower_bound(list, value);
  if (found == list.end() || *found != value) return std::nullopt;
  return static_cast<std::size_t>(found - list.begin());
}

Status check_declaration(std::span<const TensorSpec> tensors, std::uint64_t chunk_elements) {
  if (Status s = check_tensors(tensors); !s) return s;
  if (Status s = check_chunk_elements(chunk_elements); !s) return s;
  const std::uint64_t chunks = count_chunks(tensors, chunk_elements);
  if (chunks > kMaxChunks) {
    return fail(ErrorCode::kInvalidArgument, "the model has " + std::to_string(chunks) + " chunks of " +
                                                 std::to_string(chunk_elements * sizeof(float)) +
                                                 " bytes; the limit is " + std::to_string(kMaxChunks) +
                                                 ": set a larger chunk_bytes");
  }
  return {};
}

}  // namespace

std::uint64_t TensorSpec::elements() const {
  std::uint64_t product = 1;
  for (std::uint64_t d : shape) {
    if (d == 0) return 0;
    product = product > kOverflow / d ? kOverflow : product * d;  // saturates: over every limit anyway
  }
  return product;
}

bool TensorSpec::held_by(std::uint32_t model_rank) const {
  return holders.empty() || std::ranges::binary_search(holders, model_rank);
}

bool TensorSpec::held_by_any(std::span<const std::uint32_t> model_ranks) const {
  return std::ranges::any_of(model_ranks, [this](std::uint32_t rank) { return held_by(rank); });
}

bool have_holders(std::span<const TensorSpec> tensors) {
  return std::ranges::any_of(tensors, [](const TensorSpec& tensor) { return !tensor.holders.empty(); });
}

Result<Layout> Layout::make(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements,
                            std::span<const ShardSlots> shards) {
  if (Status s = check_declaration(tensors, chunk_elements); !s) return tl::unexpected(s.error());
  if (shards.empty() || shards.size() > std::numeric_limits<std::uint16_t>::max()) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(shards.size()) +
                    " shards to spread the chunks over; at least one server is needed, and "
                    "at most 65535 are possible");
  }
  for (std::size_t s = 0; s < shards.size(); ++s) {
    if (shards[s].lanes == 0) {
      return fail(ErrorCode::kInvalidArgument, "shard " + std::to_string(s) + " has 0 lanes; it needs at least one");
    }
    if (!(shards[s].weight >= 0.0) || !std::isfinite(shards[s].weight)) {
      return fail(ErrorCode::kInvalidArgument, "shard " + std::to_string(s) + " has weight " +
                                                   std::to_string(shards[s].weight) +
                                                   "; it must be a finite number, 0 or above");
    }
  }
  if (std::ranges::none_of(shards, [](const ShardSlots& s) { return s.weight > 0.0; })) {
    return fail(ErrorCode::kInvalidArgument, "all " + std::to_string(shards.size()) +
                                                 " shards have weight 0; at least one must be above 0, to own the "
                                                 "chunks");
  }

  const std::vector<std::uint16_t> shard_of = deal_chunks(count_chunks(tensors, chunk_elements), shards);
  std::vector<std::uint32_t> next_lane(shards.size(), 0);
  std::vector<ChunkOwner> owners;
  owners.reserve(shard_of.size());
  for (std::uint16_t s : shard_of) {
    owners.push_back({ShardIndex(s), LaneIndex(static_cast<std::uint16_t>(next_lane[s]))});
    next_lane[s] = (next_lane[s] + 1) % shards[s].lanes;
  }
  return with_owners(std::move(tensors), chunk_elements, std::move(owners));
}

Result<Layout> Layout::unowned(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements) {
  const ShardSlots one{};
  return make(std::move(tensors), chunk_elements, {&one, 1});
}

Result<Layout> Layout::with_owners(std::vector<TensorSpec> tensors, std::uint64_t chunk_elements,
                                   std::vector<ChunkOwner> owners) {
  if (Status s = check_declaration(tensors, chunk_elements); !s) return tl::unexpected(s.error());
  const std::uint64_t chunks = count_chunks(tensors, chunk_elements);
  if (owners.size() != chunks) {
    return fail(ErrorCode::kInvalidArgument, "the layout has " + std::to_string(chunks) + " chunks but owners for " +
                                                 std::to_string(owners.size()) + " of them");
  }

  Layout layout;
  layout.offsets_.reserve(tensors.size());
  for (const TensorSpec& t : tensors) layout.place(t);
  layout.hash_ = layout_hash(tensors, chunk_elements);
  layout.begins_ = chunk_begins(tensors, chunk_elements);
  layout.chunk_elements_ = chunk_elements;
  layout.tensors_ = std::move(tensors);
  layout.owners_ = std::move(owners);
  return layout;
}

void Layout::place(const TensorSpec& tensor) {
  offsets_.push_back(flat_elements_);
  parameters_ += tensor.elements();
  flat_elements_ += round_up(tensor.elements(), kTensorAlign);
}

ChunkRange Layout::chunk(ChunkIndex c) const {
  TRIB_ASSERT(c.value < owners_.size());
  return {begins_[c.value], begins_[c.value + 1] - begins_[c.value]};
}

// Held tensors and chunks keep their order and their bounds: a run of tensors with the same holders is in the part
// whole, or not at all.
std::optional<Layout> Layout::part(std::span<const std::uint32_t> model_ranks) const {
  TRIB_ASSERT(!is_part());
  const auto held = [&](const TensorSpec& tensor) { return tensor.held_by_any(model_ranks); };
  if (model_ranks.empty() || std::ranges::all_of(tensors_, held)) return *this;
  if (std::ranges::none_of(tensors_, held)) return std::nullopt;
  Layout part;
  part.chunk_elements_ = chunk_elements_;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (!held(tensors_[t])) continue;
    part.whole_tensors_.push_back(t);
    part.tensors_.push_back(tensors_[t]);
    part.place(tensors_[t]);
  }
  part.begins_.push_back(0);
  for (std::uint32_t c = 0; c < owners_.size(); ++c) {
    if (!held(tensors_[tensors_of(ChunkIndex(c)).first])) continue;
    part.whole_chunks_.push_back(ChunkIndex(c));
    part.owners_.push_back(owners_[c]);
    part.begins_.push_back(part.begins_.back() + chunk(ChunkIndex(c)).elements);
  }
  TRIB_ASSERT(part.begins_.back() == part.flat_elements_);
  part.hash_ = layout_hash(part.tensors_, chunk_elements_);
  return part;
}

std::optional<ChunkIndex> Layout::in_part(ChunkIndex of_whole) const {
  if (!is_part()) return of_whole.value < owners_.size() ? std::optional(of_whole) : std::nullopt;
  const std::optional<std::size_t> here = position_of(whole_chunks_, of_whole);
  return here ? std::optional(ChunkIndex(static_cast<std::uint32_t>(*here))) : std::nullopt;
}

std::optional<std::size_t> Layout::tensor_in_part(std::size_t of_whole) const {
  if (!is_part()) return of_whole < tensors_.size() ? std::optional(of_whole) : std::nullopt;
  return position_of(whole_tensors_, of_whole);
}

std::pair<std::size_t, std::size_t> Layout::tensors_of(ChunkIndex c) const {
  const ChunkRange range = chunk(c);
  // First: the last tensor that starts at or before the chunk. Padding is shorter than the alignment of both tensors
  // and chunks, so that tensor reaches into the chunk.
  const auto first = std::upper_bound(offsets_.begin(), offsets_.end(), range.begin) - offsets_.begin() - 1;
  const auto last = std::lower_bound(offsets_.begin(), offsets_.end(), range.begin + range.elements) - offsets_.begin();
  return {static_cast<std::size_t>(first), static_cast<std::size_t>(last)};
}

std::pair<std::uint32_t, std::uint32_t> Layout::chunks_of(std::size_t tensor) const {
  TRIB_ASSERT(tensor < tensors_.size());
  const std::uint64_t begin = offsets_[tensor];
  const std::uint64_t last = begin + tensors_[tensor].elements() - 1;
  const auto of = [this](std::uint64_t element) {  // the last chunk that begins at or before it
    return static_cast<std::uint32_t>(std::ranges::upper_bound(begins_, element) - begins_.begin() - 1);
  };
  return {of(begin), of(last) + 1};
}

std::vector<std::uint32_t> Layout::groups_of(ChunkIndex c) const {
  std::vector<std::uint32_t> groups;
  groups_of(c, groups);
  return groups;
}

void Layout::groups_of(ChunkIndex c, std::vector<std::uint32_t>& groups) const {
  groups.clear();
  const auto [first, last] = tensors_of(c);
  for (std::size_t t = first; t < last; ++t) {
    const auto place = std::ranges::lower_bound(groups, tensors_[t].group);
    if (place == groups.end() || *place != tensors_[t].group) groups.insert(place, tensors_[t].group);
  }
}

std::vector<ChunkIndex> Layout::chunks_owned_by(ShardIndex shard, LaneIndex lane) const {
  std::vector<ChunkIndex> mine;
  for (std::uint32_t c = 0; c < owners_.size(); ++c) {
    if (owners_[c] == ChunkOwner{shard, lane}) mine.push_back(ChunkIndex(c));
  }
  return mine;
}

std::uint64_t default_chunk_elements(std::uint64_t flat_elements, std::span<const ShardSlots> shards,
                                     std::uint32_t nodes, bool one_machine, std::uint64_t largest) {
  constexpr double kChunksPerLane = 8, kTail = 0.02;
  const std::uint64_t low = one_machine ? 64u << 10 : 16u << 10;
  double total_weight = 0.0;
  for (const ShardSlots& s : shards) total_weight += s.weight;

  auto enough = [&](std::uint64_t chunk_bytes) {
    const double chunks =
        std::floor(static_cast<double>(flat_elements) * sizeof(float) / static_cast<double>(chunk_bytes));
    return std::all_of(shards.begin(), shards.end(), [&](const ShardSlots& s) {
      return chunks * (s.weight / total_weight) >= kChunksPerLane * s.lanes;
    });
  };
  // The nearest power of two: above this a chunk of half the size is nearer.
  double most = static_cast<double>(largest);
  if (!one_machine) {
    const double in_tail = 2.0 * static_cast<double>(shards.size()) + static_cast<double>(nodes);
    most = std::sqrt(2.0) * kTail * static_cast<double>(flat_elements * sizeof(float)) / in_tail;
  }
  std::uint64_t chunk_bytes = largest;
  while (chunk_bytes > low && (static_cast<double>(chunk_bytes) > most || !enough(chunk_bytes))) chunk_bytes /= 2;
  return chunk_bytes / sizeof(float);
}

std::uint64_t default_bucket_elements(std::uint64_t flat_elements) {
  // Every bucket costs the latency of a whole ring: on loopback, a model of 1 MB takes 3 times as long in pieces of 64
  // KiB as in two of 512 KiB. Beyond 4 MiB rings over TCP gain little, but the collectives of GPUs do, and more buckets
  // overlap better with a backward pass.
  constexpr std::uint64_t kLow = 512u << 10, kEnough = 4u << 20, kHigh = 16u << 20;  // bytes
  const auto buckets = [](std::uint64_t bytes) { return bytes > kEnough ? 16u : 8u; };
  std::uint64_t bytes = kHigh;
  while (bytes > kLow && flat_elements * sizeof(float) < buckets(bytes) * bytes) bytes /= 2;
  return bytes / sizeof(float);
}

Result<Layout> bucket_layout(std::vector<TensorSpec> tensors, std::uint64_t chunk_bytes) {
  const Result<Layout> probe = Layout::unowned(tensors);
  if (!probe) return probe;
  const std::uint64_t elements =
      chunk_bytes != 0 ? chunk_bytes / sizeof(float) : default_bucket_elements(probe->flat_elements());
  return Layout::unowned(std::move(tensors), elements);
}

std::string describe_difference(std::span<const TensorSpec> ours, std::span<const TensorSpec> theirs) {
  const std::string cure = "; every rank must declare the same tensors in the same order";
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    if (ours[i] == theirs[i]) continue;
    return "tensor " + std::to_string(i) + " is " + spec_text(ours[i]) + " in the job, but " + spec_text(theirs[i]) +
           " in your declaration" + cure;
  }
  if (ours.size() == theirs.size()) return "";
  const bool surplus = theirs.size() > ours.size();
  const std::size_t first = std::min(ours.size(), theirs.size());
  return "the job has " + std::to_string(ours.size()) + " tensors, but your declaration has " +
         std::to_string(theirs.size()) + ": tensor " + std::to_string(first) + ", " +
         spec_text(surplus ? theirs[first] : ours[first]) + ", is only in " +
         (surplus ? "your declaration" : "the job") + cure;
}

}  // namespace tributary
