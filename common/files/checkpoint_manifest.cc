#include "common/files/checkpoint_manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "common/base/assert.h"
#include "common/base/printed.h"
#include "common/base/version.h"
#include "common/config/job_json.h"
#include "common/config/optimizer_config.h"
#include "common/config/step_runs.h"
#include "common/files/durable_file.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxFileName = 255;
constexpr std::size_t kMaxHolders = 1u << 16;  // ranks of a view: kMaxRanks of common/wire/attach_messages.h

// A flaw of the manifest; thrown within manifest_from_json() only.
struct Flaw {
  ErrorCode code;
  std::string what;
};

std::string hex(std::uint64_t value) {
  return printed("%016llx", static_cast<unsigned long long>(value));
}

[[noreturn]] void contradiction(const std::string& what) {
  throw Flaw{ErrorCode::kStore, what};
}

// Fields of an object, checked as they are read. `where`: "layout.", for messages.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw Flaw{ErrorCode::kMalformed, name("") + " is no object"};
  }
  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw Flaw{ErrorCode::kMalformed, name(key) + " is missing"};
    return *found;
  }
  bool has(const char* key) const { return object_.contains(key); }
  std::uint64_t number(const char* key, std::uint64_t limit = ~0ull) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > limit) {
      throw Flaw{ErrorCode::kMalformed,
                 name(key) + " is " + shown(value) + ", not a number from 0 to " + std::to_string(limit)};
    }
    return value.get<std::uint64_t>();
  }
  std::string text(const char* key, std::size_t limit = 1024) const {
    const Json& value = at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > limit) {
      throw Flaw{ErrorCode::kMalformed, name(key) + " is " + shown(value) + ", not a text"};
    }
    return value.get<std::string>();
  }
  const Json& list(const char* key, std::size_t limit) const {
    const Json& value = at(key);
    if (!value.is_array() || value.size() > limit) {
      throw Flaw{ErrorCode::kMalformed, name(key) + " is no list of at most " + std::to_string(limit) + " entries"};
    }
    return value;
  }
  Fields object(const char* key) const { return Fields(at(key), name(key) + "."); }

  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() <= 80 ? text : text.substr(0, 80) + "...";
  }

 private:
  std::string name(const std::string& key) const {
    std::string full = where_ + key;
    if (full.ends_with('.')) full.pop_back();
    return full.empty() ? "the manifest" : full;
  }
  const Json& object_;
  const std::string where_;
};

std::vector<TensorSpec> read_tensors(const Fields& layout, std::vector<std::uint64_t>& offsets) {
  std::vector<TensorSpec> tensors;
  for (const Json& entry : layout.list("tensors", kMaxTensors)) {
    const Fields fields(entry, "layout.tensors[" + std::to_string(tensors.size()) + "].");
    TensorSpec tensor{fields.text("name"), {}};
    const auto numbers = [&](const char* key, std::size_t most) {
      std::vector<std::uint64_t> read;
      for (const Json& number : fields.list(key, most)) {
        if (!number.is_number_unsigned()) {
          throw Flaw{ErrorCode::kMalformed, std::string("the ") + key + " of tensor '" + tensor.name + "' is " +
                                                Fields::shown(fields.at(key))};
        }
        read.push_back(number.get<std::uint64_t>());
      }
      return read;
    };
    tensor.shape = numbers("shape", 64);
    if (fields.has("holders")) {
      for (const std::uint64_t holder : numbers("holders", kMaxHolders)) {
        if (holder >= kMaxHolders) contradiction("tensor '" + tensor.name + "' has holder " + std::to_string(holder));
        tensor.holders.push_back(static_cast<std::uint32_t>(holder));
      }
    }
    if (fields.has("group")) tensor.group = static_cast<std::uint32_t>(fields.number("group", kMaxGroups - 1));
    offsets.push_back(fields.number("offset"));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Result<Layout> make_layout(const Manifest& manifest) {
  std::vector<ChunkOwner> owners;
  owners.reserve(manifest.chunk_shards.size());
  for (const ShardIndex shard : manifest.chunk_shards) owners.push_back({shard, LaneIndex(0)});
  return Layout::with_owners(manifest.tensors, manifest.chunk_elements, std::move(owners));
}

void check_layout(const Manifest& manifest, const Fields& fields, std::span<const std::uint64_t> offsets) {
  const Result<Layout> layout = make_layout(manifest);
  if (!layout) contradiction("its layout is impossible: " + layout.error().message);
  for (std::size_t t = 0; t < offsets.size(); ++t) {
    if (offsets[t] == layout->tensor_offset(t)) continue;
    contradiction("tensor '" + manifest.tensors[t].name + "' has offset " + std::to_string(offsets[t]) +
                  ", but by the shapes before it, it begins at " + std::to_string(layout->tensor_offset(t)));
  }
  if (const std::uint64_t claimed = fields.number("flat_elements"); claimed != layout->flat_elements()) {
    contradiction("layout.flat_elements is " + std::to_string(claimed) + ", but its tensors take " +
                  std::to_string(layout->flat_elements()));
  }
  if (const std::string claimed = fields.text("hash"); claimed != hex(layout->hash())) {
    contradiction("layout.hash is " + claimed + ", but that of its tensors is " + hex(layout->hash()));
  }
}

std::vector<ManifestShard> read_shards(const Fields& root) {
  std::vector<ManifestShard> shards;
  for (const Json& entry : root.list("shards", kMaxShards)) {
    const Fields fields(entry, "shards[" + std::to_string(shards.size()) + "].");
    ManifestShard shard;
    shard.file = fields.text("file", kMaxFileName);
    shard.shard = ShardIndex(static_cast<std::uint16_t>(fields.number("shard", 0xffff)));
    shard.chunks = static_cast<std::uint32_t>(fields.number("chunks", kMaxChunks));
    shard.bytes = fields.number("bytes");
    shard.checksum = fields.text("xxh3_128");
    if (shard.file != shard_file_name(shard.shard)) {
      contradiction("the file of shard " + std::to_string(shard.shard.value) + " is named '" + shard.file + "', not '" +
                    shard_file_name(shard.shard) + "'");
    }
    if (!shards.empty() && shard.shard <= shards.back().shard) {
      contradiction("its shards are not in order: " + std::to_string(shard.shard.value) + " comes after " +
                    std::to_string(shards.back().shard.value));
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::string to_hex(const std::vector<std::byte>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// Decodes hexadecimal text. Nothing if it is none.
std::optional<std::vector<std::byte>> from_hex(std::string_view text) {
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return text.size() % 2 == 0 ? std::optional(std::move(bytes)) : std::nullopt;
}

RankStates read_rank_states(const Fields& root) {
  RankStates states;
  std::size_t bytes = 0;
  for (const Json& entry : root.list("rank_states", kMaxRankStatesBytes)) {
    const Fields fields(entry, "rank_states[" + std::to_string(states.size()) + "].");
    const RankKey rank{static_cast<std::uint32_t>(fields.number("node", 0xffffffff)),
                       static_cast<std::uint32_t>(fields.number("local_rank", 0xffffffff))};
    auto state = from_hex(fields.text("state", 2 * kMaxRankStatesBytes));
    if (!state) throw Flaw{ErrorCode::kMalformed, "a state in rank_states is no hexadecimal text"};
    bytes += state->size();
    if (bytes > kMaxRankStatesBytes || !states.emplace(rank, std::move(*state)).second) {
      contradiction("its rank_states name a rank twice, or are too many");
    }
  }
  return states;
}

// Checks that every chunk is in an existing file, and that every file has its declared number of chunks.
void check_shards(const Manifest& manifest) {
  std::vector<std::uint32_t> counts(std::size_t{0xffff} + 1, 0);
  for (const ShardIndex shard : manifest.chunk_shards) ++counts[shard.value];
  for (const ManifestShard& shard : manifest.shards) {
    if (const std::uint32_t dealt = std::exchange(counts[shard.shard.value], 0); dealt != shard.chunks) {
      contradiction("'" + shard.file + "' has " + std::to_string(shard.chunks) +
                    " chunks, but layout.chunk_shards says " + std::to_string(dealt));
    }
  }
  const auto lost = std::ranges::find_if(counts, [](std::uint32_t count) { return count != 0; });
  if (lost != counts.end()) {
    contradiction(std::to_string(*lost) + " chunks are in shard " + std::to_string(lost - counts.begin()) +
                  ", which has no file");
  }
}

Manifest read(const Json& root_json) {
  const Fields root(root_json, "");
  const std::uint64_t format = root.number("format");
  if (format != kManifestFormat) {
    throw Flaw{ErrorCode::kStoreFormat, "it has format " + std::to_string(format) + ", this program reads format " +
                                            std::to_string(kManifestFormat) + "; use the release that wrote it"};
  }
  Manifest manifest;
  manifest.created = root.text("created");
  manifest.round = Round(root.number("round"));
  manifest.view = ViewId(static_cast<std::uint32_t>(root.number("view", 0xffffffff)));
  manifest.nodes = static_cast<std::uint32_t>(root.number("nodes", 0xffffffff));
  manifest.world_size = static_cast<std::uint32_t>(root.number("world_size", 0xffffffff));
  const Result<JobConfig> job = job_from_json(root.at("job").dump());
  if (!job) throw Flaw{job.error().code, "job: " + job.error().message};
  manifest.job_json = to_canonical_json(*job);
  if (root.text("name") != job->name) {
    contradiction("its name is '" + root.text("name") + "', but that of its job is '" + job->name + "'");
  }
  const Fields optimizer = root.object("optimizer");
  if (optimizer.text("name") != job->optimizer.name || optimizer.at("state") != Json(state_names(job->optimizer))) {
    contradiction("its optimizer is " + Fields::shown(root.at("optimizer")) + ", but that of its job is " +
                  Json({{"name", job->optimizer.name}, {"state", state_names(job->optimizer)}}).dump());
  }

  const Fields layout = root.object("layout");
  std::vector<std::uint64_t> offsets;
  manifest.tensors = read_tensors(layout, offsets);
  manifest.chunk_elements = layout.number("chunk_elements");
  for (const Json& shard : layout.list("chunk_shards", kMaxChunks)) {
    if (!shard.is_number_unsigned() || shard.get<std::uint64_t>() > 0xffff) {
      throw Flaw{ErrorCode::kMalformed, "layout.chunk_shards has an entry " + Fields::shown(shard)};
    }
    manifest.chunk_shards.push_back(ShardIndex(shard.get<std::uint16_t>()));
  }
  check_layout(manifest, layout, offsets);
  if (const Status known = check_groups(*job, manifest.tensors); !known) contradiction(known.error().message);
  manifest.shards = read_shards(root);
  check_shards(manifest);
  if (root.has("rank_states")) manifest.rank_states = read_rank_states(root);
  if (root.has("computed_with")) {
    for (const Json& kind : root.list("computed_with", kMaxComputeKinds)) {
      if (!kind.is_string() || kind.get<std::string>().size() > kMaxComputeKindBytes) {
        throw Flaw{ErrorCode::kMalformed, "computed_with has an entry " + Fields::shown(kind)};
      }
      add_kind(manifest.computed_with, kind.get<std::string>());
    }
  }
  return manifest;
}

}  // namespace

std::string shard_file_name(ShardIndex shard) {
  return "shard-" + std::to_string(shard.value) + ".bin";
}

std::string checkpoint_name(std::string_view job_name, Round round) {
  std::string name = plain_file_name(job_name);
  if (name != job_name) name += "-" + hex(XXH3_64bits(job_name.data(), job_name.size()));
  return name + "-round-" + std::to_string(round.value);
}

std::vector<std::string> state_names(const OptimizerConfig& config) {
  const auto optimizer = make_optimizer(config);
  if (!optimizer) return {};
  const auto names = optimizer->state_names();
  return {names.begin(), names.end()};
}

std::string to_json(const Manifest& manifest) {
  const JobConfig job = job_of(manifest);
  const Layout layout = layout_of(manifest);
  Json tensors = Json::array();
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorSpec& tensor = manifest.tensors[t];
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}, {"offset", layout.tensor_offset(t)}});
    if (tensor.group != 0) tensors.back()["group"] = tensor.group;
    if (!tensor.holders.empty()) tensors.back()["holders"] = tensor.holders;
  }
  Json chunk_shards = Json::array();
  for (const ShardIndex shard : manifest.chunk_shards) chunk_shards.push_back(shard.value);
  Json shards = Json::array();
  for (const ManifestShard& shard : manifest.shards) {
    shards.push_back({{"file", shard.file},
                      {"shard", shard.shard.value},
                      {"chunks", shard.chunks},
                      {"bytes", shard.bytes},
                      {"xxh3_128", shard.checksum}});
  }
  Json rank_states = Json::array();
  for (const auto& [rank, state] : manifest.rank_states) {
    rank_states.push_back({{"node", rank.node}, {"local_rank", rank.local_rank}, {"state", to_hex(state)}});
  }
  // tributary-train's samples are a function of seed and round (train/sampler.h): its ranks need no more to continue.
  const Json sampler = {
      {"rule", "a permutation of all samples per epoch, from (seed, epoch); round r takes the r-th batch"},
      {"seed", job.train.seed},
      {"global_batch", job.train.global_batch},
      {"rounds_done", manifest.round.value}};
  const Json root = {{"format", kManifestFormat},
                     {"program", std::string("tributary ") + kVersion},
                     {"name", job.name},
                     {"created", manifest.created},
                     {"round", manifest.round.value},
                     {"view", manifest.view.value},
                     {"nodes", manifest.nodes},
                     {"world_size", manifest.world_size},
                     {"optimizer", {{"name", job.optimizer.name}, {"state", state_names(job.optimizer)}}},
                     {"sampler", sampler},
                     {"rank_states", std::move(rank_states)},
                     {"computed_with", manifest.computed_with},
                     {"shards", std::move(shards)},
                     {"job", Json::parse(manifest.job_json)},
                     {"layout",
                      {{"hash", hex(layout.hash())},
                       {"chunk_elements", manifest.chunk_elements},
                       {"flat_elements", layout.flat_elements()},
                       {"tensors", std::move(tensors)},
                       {"chunk_shards", std::move(chunk_shards)}}}};
  return root.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Manifest> manifest_from_json(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return fail(ErrorCode::kMalformed,
                "it has " + std::to_string(text.size()) + " bytes; the limit is " + std::to_string(kMaxManifestBytes));
  }
  constexpr int kMaxDepth = 8;  // values are compared recursively
  bool too_deep = false;
  const auto watch_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  const Json root = Json::parse(text, watch_depth, /*allow_exceptions=*/false);
  if (too_deep || !root.is_object()) return fail(ErrorCode::kMalformed, "it is no JSON object");
  try {
    return read(root);
  } catch (const Flaw& flaw) {
    return fail(flaw.code, flaw.what);
  }
}

JobConfig job_of(const Manifest& manifest) {
  Result<JobConfig> job = job_from_json(manifest.job_json);
  TRIB_ASSERT(job);
  return std::move(*job);
}

Layout layout_of(const Manifest& manifest) {
  Result<Layout> layout = make_layout(manifest);
  TRIB_ASSERT(layout);
  return std::move(*layout);
}

std::uint64_t bytes_of(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const ManifestShard& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

}  // namespace tributary
