#include "worker/allreduce/replica_checkpoints.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/config/job_json.h"
#include "common/files/checkpoint_manifest.h"
#include "common/files/durable_file.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/chunk/chunk_record.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKept = 2;
constexpr char kFolder[] = "allreduce";
constexpr char kOtherLayout[] = "other tensors, or another [job] chunk_bytes";

Error about(const std::string& path, const Error& error) {
  const std::string& message = error.message;
  return {error.code, message.find(path) == std::string::npos ? "checkpoint '" + path + "': " + message : message};
}

// Names the checkpoint in the file system's error (common/files/durable_file.h) and adds the cure.
Error unwritten(const std::string& path, Error error) {
  error = about(path, error);
  error.message += "; look at the place that [store] path in worker.toml names";
  return error;
}

// Reads all chunks of a checkpoint. The first flaw ends the reading.
Status read_whole(const std::string& path, const Manifest& manifest,
                  const std::function<Status(const StoredChunk&)>& each) {
  CheckpointVisitor visitor;
  visitor.chunk = each;
  visitor.flaw = [](std::string what) { return tl::unexpected(Error{ErrorCode::kStore, std::move(what)}); };
  const Status read = read_checkpoint(path, manifest, shards_of(manifest), visitor);
  if (!read) return tl::unexpected(about(path, read.error()));
  return {};
}

}  // namespace

ChunkState ReplicaArrays::copy_of(ChunkIndex chunk, const ChunkRange& range) const {
  const auto copy = [&](const float* array) {
    BufferRef values = BufferRef::alone(range.elements * sizeof(float));
    std::memcpy(values.data(), array + range.begin, values.size());
    return values;
  };
  ChunkState state;
  state.version = Version(steps[chunk.value]);
  state.step = steps[chunk.value];
  state.params = copy(parameters);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) state.slots[slot] = copy(slots[slot]);
  return state;
}

void ReplicaArrays::take(ChunkIndex chunk, const ChunkRange& range, const ChunkState& state) const {
  std::ranges::copy(state.params.floats(), parameters + range.begin);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    std::ranges::copy(state.slots[slot].floats(), slots[slot] + range.begin);
  }
  steps[chunk.value] = state.step;
}

ReplicaCheckpoints::ReplicaCheckpoints(std::string store_path, JobConfig job, const Layout& layout)
    : store_path_(std::move(store_path)), job_(std::move(job)), layout_(layout) {}

std::string ReplicaCheckpoints::path_of(Round round) const {
  return (fs::path(store_path_) / kFolder / checkpoint_name(job_.name, round)).string();
}

std::vector<Round> ReplicaCheckpoints::rounds(const std::string& suffix) const {
  std::vector<Round> rounds;
  std::error_code ignored;
  for (fs::directory_iterator at(fs::path(store_path_) / kFolder, ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    std::string name = at->path().filename().string();
    if (!name.ends_with(suffix)) continue;
    name.resize(name.size() - suffix.size());
    const char* const first = name.data() + name.rfind('-') + 1;  // without one: the whole name
    std::uint64_t round = 0;
    const auto [stop, error] = std::from_chars(first, name.data() + name.size(), round);
    if (error == std::errc() && round > 0 && checkpoint_name(job_.name, Round(round)) == name)
      rounds.push_back(Round(round));
  }
  std::ranges::sort(rounds, std::greater());
  return rounds;
}

Status ReplicaCheckpoints::write(Round round, const ReplicaArrays& state) const {
  TRIB_ASSERT(state.steps.size() == layout_.chunks());
  const std::string path = path_of(round), partial = path + kPartialSuffix;
  std::error_code error;
  fs::create_directories(partial, error);
  if (error) {
    return tl::unexpected(unwritten(path, file_error("create the directory", partial, error.value())));
  }
  const auto give_up = [&](const Error& why) {
    fs::remove_all(partial, error);
    return tl::unexpected(unwritten(path, why));
  };
  const ShardIndex shard(0);
  const std::string file = shard_file_name(shard);
  auto writer = CheckpointFileWriter::create((fs::path(partial) / file).string(), {shard, round, layout_.hash()});
  if (!writer) return give_up(writer.error());
  for (std::uint32_t c = 0; c < layout_.chunks(); ++c) {
    records::ChunkHeader header;
    header.round = round;
    header.chunk = ChunkIndex(c);
    header.optimizer = job_.optimizer.name;
    std::string sealed;
    const ChunkState values = state.copy_of(header.chunk, layout_.chunk(header.chunk));
    const StoredChunk chunk = records::compose_chunk(std::move(header), values, sealed);
    if (Status added = (*writer)->add(chunk); !added) return give_up(added.error());
  }
  if (Status finished = (*writer)->finish(); !finished) return give_up(finished.error());

  Manifest manifest;
  manifest.created = utc_now();
  manifest.job_json = to_canonical_json(job_);
  manifest.round = round;
  manifest.tensors = layout_.tensors();
  manifest.chunk_elements = layout_.chunk_elements();
  manifest.chunk_shards.assign(layout_.chunks(), shard);
  manifest.shards = {
      {file, shard, static_cast<std::uint32_t>(layout_.chunks()), (*writer)->bytes(), (*writer)->checksum()}};
  Result<bool> sealed = seal_checkpoint(partial, path, to_json(manifest));
  if (!sealed && sealed.error().code == ErrorCode::kStore) {
    // The existing checkpoint of that round is damaged, or of an abandoned training: ranks do not continue from it.
    fs::remove_all(path, error);
    sealed = seal_checkpoint(partial, path, to_json(manifest));
  }
  if (!sealed) return give_up(sealed.error());
  remove_older(round);
  return {};
}

// Also removes checkpoints that a crash left half written.
void ReplicaCheckpoints::remove_older(Round newest) const {
  const std::vector<Round> there = rounds(), partial = rounds(kPartialSuffix);
  std::error_code ignored;
  std::size_t kept = 0;
  for (const Round round : there) {
    if (round <= newest && kept++ >= kKept) fs::remove_all(path_of(round), ignored);
  }
  for (const Round round : partial) fs::remove_all(path_of(round) + kPartialSuffix, ignored);
}

// Fails unless the checkpoint at `path` is of this job and layout. The message has the first difference.
Status ReplicaCheckpoints::same_training(Round round, const std::string& path, const std::string& job_json,
                                         std::uint64_t layout_hash) const {
  std::string difference = describe_config_difference(job_json, to_canonical_json(job_));
  if (difference.empty() && layout_hash != layout_.hash()) difference = kOtherLayout;
  if (difference.empty()) return {};
  return fail(ErrorCode::kConfigMismatch, "job '" + job_.name + "' has a checkpoint of round " +
                                              std::to_string(round.value) + " of another training: " + difference +
                                              "; train what it was, give the job another name, or remove '" + path +
                                              "' to begin anew");
}

Status ReplicaCheckpoints::read(Round round, const ReplicaArrays& state) const {
  TRIB_ASSERT(state.steps.size() == layout_.chunks());
  const std::string path = path_of(round);
  const Result<Manifest> manifest = open_checkpoint(path);
  if (!manifest) return tl::unexpected(manifest.error());
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::kStore, "checkpoint '" + path + "': " + why);
  };
  if (manifest->round != round) return refuse("it holds round " + std::to_string(manifest->round.value));
  if (layout_of(*manifest).hash() != layout_.hash()) return refuse(std::string("it was written for ") + kOtherLayout);
  const std::size_t slots = state_names(job_of(*manifest).optimizer).size();
  if (slots != state.slots.size()) {
    return refuse("it has " + std::to_string(slots) + " state arrays, the job's optimizer has " +
                  std::to_string(state.slots.size()));
  }
  return read_whole(path, *manifest, [&](const StoredChunk& chunk) -> Status {
    const Result<records::ChunkHeader> header = records::unseal_chunk(chunk.entries.front().value, "its header");
    if (!header) return tl::unexpected(header.error());
    if (header->step > round.value) {
      return refuse("chunk " + std::to_string(chunk.chunk.value) + " claims more steps than rounds");
    }
    if (chunk.entries.size() != 2 + slots) return refuse("it is of a job of another mode");
    state.take(chunk.chunk, layout_.chunk(chunk.chunk), records::state_of(*header, chunk));
    return {};
  });
}

Result<Round> ReplicaCheckpoints::newest() const {
  if (store_path_.empty()) return Round(0);
  const std::vector<Round> there = rounds();
  if (there.empty()) return Round(0);
  std::optional<Error> first;
  for (const Round round : there) {
    const std::string path = path_of(round);
    const Result<Manifest> manifest = open_checkpoint(path);
    Status whole = manifest ? read_whole(path, *manifest, [](const StoredChunk&) -> Status { return {}; })
                            : tl::unexpected(manifest.error());
    if (whole && manifest->round != round) {
      whole =
          fail(ErrorCode::kStore, "checkpoint '" + path + "': it holds round " + std::to_string(manifest->round.value));
    }
    if (!whole) {
      if (!first) first = whole.error();
      continue;
    }
    const Status same = same_training(round, path, manifest->job_json, layout_of(*manifest).hash());
    if (!same) return tl::unexpected(same.error());
    return round;
  }
  first->message += "; no other checkpoint of the job is whole: remove '" + path_of(there.front()) +
                    "' to begin the job anew, or bring its files back";
  return tl::unexpected(*first);
}

}  // namespace tributary
