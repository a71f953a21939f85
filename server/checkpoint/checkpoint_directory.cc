#include "server/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/checksum.h"
#include "common/config/job_json.h"
#include "common/files/durable_file.h"
#include "common/system/folder.h"
#include "server/checkpoint/checkpoint_parts.h"
#include "server/checkpoint/checkpoint_reader.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxCompleteBytes = 1024;
constexpr std::size_t kMaxFindings = 100;
constexpr char kRotatesFile[] = "ROTATES";  // in checkpoints that rotate

std::string in_directory(const std::string& directory, const std::string& file) {
  return (fs::path(directory) / file).string();
}

// Size of a file, or nothing.
std::optional<std::uint64_t> file_size(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? std::nullopt : std::optional<std::uint64_t>(size);
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

struct ManifestText {
  std::string text;
  std::string complete_flaw;  // what is wrong with COMPLETE; empty: it fits the manifest
};

Result<ManifestText> read_manifest(const std::string& path) {
  ManifestText out;
  Result<std::string> text = read_small_file(in_directory(path, kManifestFile), kMaxManifestBytes);
  const Result<std::string> complete = read_small_file(in_directory(path, kCompleteFile), kMaxCompleteBytes);
  if (!complete) {
    out.complete_flaw = complete.error().code == ErrorCode::kNotFound
                            ? std::string(kCompleteFile) +
                                  " is missing: the checkpoint was never finished, or a copy of it stopped half-way"
                            : complete.error().message;
  }
  if (!text) {
    if (!complete && text.error().code == ErrorCode::kNotFound) return fail(ErrorCode::kStore, out.complete_flaw);
    return tl::unexpected(text.error());
  }
  out.text = std::move(*text);
  if (complete && *complete != checksum_hex(out.text) + "\n") {
    out.complete_flaw = std::string(kManifestFile) + " does not have the checksum that " + kCompleteFile +
                        " names: one of the two is damaged";
  }
  return out;
}

std::string in_words(const std::string& path) {
  return "checkpoint '" + path + "': ";
}

// Beside its manifest.
std::set<std::string> files_of(const Manifest& manifest) {
  std::set<std::string> files;
  for (const ManifestShard& shard : manifest.shards) files.insert(shard.file);
  for (const LargePart& large : large_parts_of(manifest.rank_states)) files.insert(part_file_name(large));
  return files;
}

// A server whose file in the older checkpoint is whole has linked it, else written the same state anew: that takes the
// place of the damaged file.
Status take_over(const std::set<std::string>& files, const std::string& partial, const std::string& target) {
  for (const std::string& file : files) {
    const std::string fresh = in_directory(partial, file), older = in_directory(target, file);
    std::error_code ignored;
    if (fs::equivalent(fresh, older, ignored)) continue;
    if (Status renamed = rename_durably(fresh, older); !renamed) return renamed;
  }
  return {};
}

bool same_state(const Manifest& a, const Manifest& b) {
  return a.shards == b.shards && a.round == b.round && a.tensors == b.tensors && a.chunk_elements == b.chunk_elements &&
         a.chunk_shards == b.chunk_shards && same_training(a.job_json, b.job_json);
}

// A rank that only the first of two keeps something of; none: there is no such rank.
std::optional<RankKey> lacking_rank(const Manifest& fresh, const Manifest& older) {
  for (const auto& [rank, state] : fresh.rank_states) {
    if (!older.rank_states.contains(rank)) return rank;
  }
  return std::nullopt;
}

}  // namespace

std::set<ShardIndex> shards_of(const Manifest& manifest) {
  std::set<ShardIndex> shards;
  for (const ManifestShard& shard : manifest.shards) shards.insert(shard.shard);
  return shards;
}

Result<Manifest> open_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return fail(ErrorCode::kNotFound, "there is no checkpoint '" + path +
                                          "': it is no directory; give the path of a "
                                          "NAME-round-R directory as `tributary checkpoint list` shows it");
  }
  const Result<ManifestText> text = read_manifest(path);
  if (!text) return fail(text.error().code, in_words(path) + text.error().message);
  if (!text->complete_flaw.empty()) return fail(ErrorCode::kStore, in_words(path) + text->complete_flaw);
  Result<Manifest> manifest = manifest_from_json(text->text);
  if (!manifest) return fail(manifest.error().code, in_words(path) + kManifestFile + ": " + manifest.error().message);
  return manifest;
}

Result<std::string> manifest_checksum(const std::string& path) {
  Result<std::string> text = read_small_file(in_directory(path, kCompleteFile), kMaxCompleteBytes);
  if (text && text->ends_with('\n')) text->pop_back();
  return text;
}

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) &&
         (exists(in_directory(path, kManifestFile)) || exists(in_directory(path, kCompleteFile)) ||
          fs::path(path).filename().string().find("-round-") != std::string::npos);
}

Result<std::vector<CheckpointSummary>> list_checkpoints(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return fail(ErrorCode::kNotFound,
                "'" + directory + "' is no directory; give the one that checkpoints were saved in");
  }
  std::vector<CheckpointSummary> found;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    const std::string path = at->path().string();
    if (!is_checkpoint(path)) continue;
    CheckpointSummary summary{path, at->path().filename().string(), std::nullopt, {}, 0};
    Result<Manifest> manifest = open_checkpoint(path);
    if (summary.name.ends_with(kPartialSuffix)) {
      summary.flaw = "it is being written, or was never finished";
    } else if (!manifest) {
      summary.flaw = manifest.error().message;
    } else {
      summary.manifest = std::move(*manifest);
    }
    std::error_code ignored;
    for (fs::directory_iterator file(path, ignored), last; !ignored && file != last; file.increment(ignored)) {
      summary.bytes += file_size(file->path().string()).value_or(0);
    }
    found.push_back(std::move(summary));
  }
  if (error) return fail(ErrorCode::kIo, "cannot read the directory '" + directory + "': " + error.message());
  std::ranges::sort(found, [](const CheckpointSummary& a, const CheckpointSummary& b) {
    if (a.manifest && b.manifest) {
      const std::string job_a = job_of(*a.manifest).name, job_b = job_of(*b.manifest).name;
      return std::tie(job_a, a.manifest->round, a.name) < std::tie(job_b, b.manifest->round, b.name);
    }
    return a.manifest.has_value() != b.manifest.has_value() ? a.manifest.has_value() : a.name < b.name;
  });
  return found;
}

Verification verify_checkpoint(const std::string& path) {
  Verification result;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    result.findings.push_back("there is no such directory");
    return result;
  }
  const Result<ManifestText> text = read_manifest(path);
  if (!text) {
    result.findings.push_back(text.error().message);
    return result;
  }
  if (!text->complete_flaw.empty()) result.findings.push_back(text->complete_flaw);
  const Result<Manifest> manifest = manifest_from_json(text->text);
  if (!manifest) {
    result.findings.push_back(std::string(kManifestFile) + ": " + manifest.error().message);
    return result;
  }
  CheckpointVisitor visitor;
  visitor.chunk = [&](const StoredChunk& chunk) -> Status {
    ++result.chunks;
    for (const StoredEntry& entry : chunk.entries) result.bytes += entry.value.size();
    return {};
  };
  visitor.flaw = [&](std::string what) -> Status {
    result.findings.push_back(std::move(what));
    return result.findings.size() < kMaxFindings ? Status{} : fail(ErrorCode::kLimit, "enough");
  };
  (void)read_checkpoint(path, *manifest, shards_of(*manifest), visitor);  // what is wrong is in the findings
  for (const LargePart& large : large_parts_of(manifest->rank_states)) {
    if (result.findings.size() >= kMaxFindings) break;
    if (Status whole = read_part_file(path, large, [](auto, auto) { return Status(); }); !whole) {
      result.findings.push_back(whole.error().message);
      continue;
    }
    ++result.large_parts;
    result.bytes += large.bytes;
  }
  return result;
}

namespace {

bool is_file_of_checkpoint(const std::string& name) {
  return name == kManifestFile || (name.ends_with(".bin") && (name.starts_with("shard-") || name.starts_with("part-")));
}

// COMPLETE goes first and the mark last: whatever cuts this off, the next rotation removes the rest.
bool remove_checkpoint(const Folder& parent, const std::string& name) {
  const Result<Folder> folder = parent.enter(name, false);
  if (!folder) return false;
  std::error_code error;
  fs::remove(folder->in(kCompleteFile), error);
  if (error || !sync_directory(folder->through())) return false;
  std::vector<std::string> files;
  bool others = false;
  for (fs::directory_iterator at(folder->through(), error), end; !error && at != end; at.increment(error)) {
    const std::string file = at->path().filename().string();
    if (is_file_of_checkpoint(file)) {
      files.push_back(file);
    } else if (file != kRotatesFile) {
      others = true;
    }
  }
  for (const std::string& file : files) {
    if (!error) fs::remove(folder->in(file), error);
  }
  if (error || others) return false;
  fs::remove(folder->in(kRotatesFile), error);
  if (!error) fs::remove(parent.in(name), error);
  return !error;
}

Status see_shard_files(const std::string& partial, const Manifest& manifest) {
  for (const ManifestShard& shard : manifest.shards) {
    const std::string path = in_directory(partial, shard.file);
    if (file_size(path) != shard.bytes) {
      return fail(ErrorCode::kNotFound, "server " + std::to_string(shard.shard.value) + " wrote '" + path +
                                            "', but server 0 does not see it there with " +
                                            std::to_string(shard.bytes) +
                                            " bytes; save into a directory that all servers share");
    }
  }
  return {};
}

// A checkpoint that rotates gives way to another state of its round that rotates.
bool gives_way(const std::string& target, const Folder& older) {
  if (!exists(older.in(kRotatesFile))) return false;
  const fs::path path(target);
  const Result<Folder> parent = Folder::open(path.parent_path().string());
  return parent && remove_checkpoint(*parent, path.filename().string());
}

Status is_there(const std::string& target, const std::string& what) {
  return fail(ErrorCode::kStore,
              "'" + target + "' is there already" + what + "; move it away, or save into another directory");
}

// The files are those of the checkpoint that is there, and some of its files may be damaged. rotates: as there.
Status keep_older(const std::string& inside, const Folder& older, const Manifest& manifest, const Manifest& other,
                  bool rotates) {
  std::set<std::string> files = files_of(manifest);
  std::erase_if(files, [theirs = files_of(other)](const std::string& file) { return !theirs.contains(file); });
  if (Status mended = take_over(files, inside, older.through()); !mended) return mended;
  std::error_code error;
  const bool marked = !rotates && fs::remove(older.in(kRotatesFile), error);
  if (error) {
    return fail(ErrorCode::kIo, "cannot remove '" + older.in(kRotatesFile) + "': " + error.message());
  }
  return marked ? sync_directory(older.through()) : Status();
}

// All files but the manifest are there. inside: partial, held open.
Result<bool> seal_files(const std::string& partial, const std::string& inside, const std::string& target,
                        const Manifest& manifest, const std::string& manifest_json, bool rotates) {
  std::error_code error;
  if (exists(target)) {
    const Result<Folder> older = Folder::open(target);
    if (!older) return tl::unexpected(older.error());
    Result<Manifest> other = open_checkpoint(older->through());
    if (!other) other = tl::unexpected(older->named(other.error()));
    const bool same = other && same_state(manifest, *other);
    const auto rank = same ? lacking_rank(manifest, *other) : std::nullopt;
    if (same && !rank) {
      const Status kept = keep_older(inside, *older, manifest, *other, rotates);
      if (!kept) return tl::unexpected(older->named(kept.error()));
      fs::remove_all(partial, error);
      return true;
    }
    Status refused;
    if (!other) {
      refused = is_there(target, " and is no whole checkpoint: " + other.error().message);
    } else if (!same) {
      refused = is_there(target, " and holds another state of that round");
    } else {
      refused = is_there(target, ", without what node " + std::to_string(rank->node) + " rank " +
                                     std::to_string(rank->local_rank) + " keeps, which has come since");
    }
    if (!rotates || !gives_way(target, *older)) return tl::unexpected(refused.error());
  }
  const std::set<std::string> files = files_of(manifest);
  // Removes the files of an earlier attempt, perhaps with other servers.
  for (fs::directory_iterator at(inside, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!files.contains(at->path().filename().string())) fs::remove_all(at->path(), ignored);
  }
  Status done = write_small_file(in_directory(inside, kManifestFile), manifest_json);
  if (done && rotates) done = write_small_file(in_directory(inside, kRotatesFile), "");
  if (done) done = sync_directory(inside);
  if (done) done = write_small_file(in_directory(inside, kCompleteFile), checksum_hex(manifest_json) + "\n");
  if (done) done = sync_directory(inside);
  if (done) done = rename_durably(partial, target);
  if (!done) return tl::unexpected(done.error());
  return false;
}

}  // namespace

Result<bool> seal_checkpoint(const std::string& partial, const std::string& target, const std::string& manifest_json,
                             const WritePart& write_part, bool rotates) {
  const Result<Manifest> manifest = manifest_from_json(manifest_json);
  if (!manifest) return fail(manifest.error().code, "the manifest of '" + target + "': " + manifest.error().message);
  // Files that are not a checkpoint's are removed there.
  const Result<Folder> folder = Folder::open(partial);
  if (!folder) return tl::unexpected(folder.error());
  const std::string inside = folder->through();
  const std::set<LargePart> parts = write_part ? large_parts_of(manifest->rank_states) : std::set<LargePart>();
  Status ready = see_shard_files(inside, *manifest);
  if (!ready) return tl::unexpected(folder->named(ready.error()));
  for (auto part = parts.begin(); ready && part != parts.end(); ++part) ready = write_part(inside, *part);
  Result<bool> sealed =
      ready.and_then([&] { return seal_files(partial, inside, target, *manifest, manifest_json, rotates); });
  std::error_code ignored;  // the shards' files go when the coordinator has heard of it
  for (const LargePart& large : parts) {
    if (!sealed) fs::remove(in_directory(inside, part_file_name(large)), ignored);
  }
  return sealed ? sealed : tl::unexpected(folder->named(sealed.error()));
}

std::vector<std::string> rotate_checkpoints(const Folder& folder, const std::string& newest, std::uint32_t keep) {
  const std::string prefix = newest.substr(0, newest.rfind('-') + 1);  // the round follows
  std::vector<std::string> names, removed;
  std::error_code error;
  for (fs::directory_iterator at(folder.through(), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(prefix) && name != newest) names.push_back(name);
  }
  const auto remove = [&](const std::string& name) {
    if (remove_checkpoint(folder, name)) removed.push_back(name);
  };
  std::vector<std::pair<fs::file_time_type, std::string>> whole;
  for (const std::string& name : names) {
    const std::size_t digits = name.find_first_not_of("0123456789", prefix.size());
    const bool partial = digits != std::string::npos && name.substr(digits) == kPartialSuffix;
    if (digits != std::string::npos && !partial) continue;
    const Result<Folder> checkpoint = folder.enter(name, false);
    if (!checkpoint || (!partial && !exists(checkpoint->in(kRotatesFile)))) continue;
    const auto completed = fs::last_write_time(checkpoint->in(kCompleteFile), error);
    if (partial || error == std::errc::no_such_file_or_directory) {
      remove(name);
    } else if (!error) {
      whole.emplace_back(completed, name);
    }
  }
  std::ranges::sort(whole, std::ranges::greater());
  for (std::size_t i = keep - 1; i < whole.size(); ++i) remove(whole[i].second);
  return removed;
}

}  // namespace tributary
