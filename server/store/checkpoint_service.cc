#include "server/store/checkpoint_service.h"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/files/durable_file.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/checkpoint_parts.h"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/chunk/chunk_record.h"
#include "server/store/disk_space.h"
#include "server/store/shard_file_writer.h"
#include "server/store/snapshot_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

std::string without_suffix(const std::string& directory) {
  const std::string suffix = kPartialSuffix;
  return directory.ends_with(suffix) ? directory.substr(0, directory.size() - suffix.size()) : directory;
}

// Shares the files among the servers that load, so that one of them reads each file whole: the restore counts when all
// are done.
std::set<ShardIndex> files_to_check(const Manifest& manifest, const Layout& layout, ShardIndex mine) {
  std::set<ShardIndex> loading, files;
  for (const ChunkOwner owner : layout.owners()) loading.insert(owner.shard);
  auto reader = loading.begin();
  for (const ManifestShard& file : manifest.shards) {
    if (*reader == mine) files.insert(file.shard);
    if (++reader == loading.end()) reader = loading.begin();
  }
  return files;
}

}  // namespace

CheckpointService::CheckpointService(Store& store, Options options, Done done, Log log)
    : store_(store),
      options_(std::move(options)),
      done_(std::move(done)),
      log_(std::move(log)),
      bucket_(TokenBucket::of_disk(options_.io_bytes_per_s)),
      orders_("checkpoints", kMaxOrders, log_, OrderThread::Priority::kLow) {}

void CheckpointService::write(const WriteCheckpoint& order) {
  Result<PinnedSnapshot> snapshot = store_.pin(order.job, order.round, options_.shard);
  queue(order.operation, [this, order, snapshot = std::move(snapshot)](CheckpointDone& done) {
    return snapshot ? write_shard(order, *snapshot, done) : Status(tl::unexpected(snapshot.error()));
  });
}

void CheckpointService::seal(const SealCheckpoint& order) {
  queue(order.operation, [this, order](CheckpointDone& done) { return seal_parts(order, done); });
}

void CheckpointService::load(const LoadCheckpoint& order) {
  queue(order.operation, [this, order](CheckpointDone& done) { return load_shard(order, done); });
}

void CheckpointService::drop(const DropCheckpoint& order) {
  queue(0, [this, order](CheckpointDone& done) -> Status {
    done.unchanged = order.job.value == 0;
    if (!order.directory.empty() && !options_.in_use(order.directory)) drop_file(order.directory);
    if (order.job.value == 0) return {};
    const Status dropped = store_.drop_job(order.job);
    return dropped ? store_.large_parts().drop(order.job, {}) : dropped;
  });
}

// The next attempt replaces a file that cannot be removed.
void CheckpointService::drop_file(const std::string& directory) {
  const fs::path path(directory);
  const Result<Folder> parent = options_.roots.open(path.parent_path().string());
  if (!parent) return;
  const std::string name = path.filename().string();
  const Result<Folder> folder = parent->enter(name, false);
  if (!folder) return;
  std::error_code ignored;
  fs::remove(folder->in(shard_file_name(options_.shard)), ignored);
  fs::remove(parent->in(name), ignored);  // by the last of the servers: it is empty then
}

void CheckpointService::queue(std::uint64_t operation, Order order) {
  const auto done = std::make_shared<CheckpointDone>();
  done->operation = operation;
  const auto end = [this, done](const Status& status) {
    if (!status) {
      done->ok = false;
      done->code = status.error().code;
      done->message = status.error().message;
      log_("an order for a checkpoint failed: " + done->message);
    }
    done_(*done);
  };
  const Status taken = orders_.order([order = std::move(order), done] { return order(*done); }, end);
  if (taken) return;
  end(taken);
  if (operation != 0) return;
  log_(
      "what is left of an older checkpoint or job stays where it is; it is dropped when a job of that name is "
      "replaced or saved again");
}

// Waits until so much more may go to the disk.
Status CheckpointService::pace(std::uint64_t bytes) {
  moved_.fetch_add(bytes, std::memory_order_relaxed);
  return orders_.pause(bucket_.take(bytes, steady_ns()));
}

Status CheckpointService::write_shard(const WriteCheckpoint& order, const PinnedSnapshot& snapshot,
                                      CheckpointDone& done) {
  const std::uint64_t started = steady_ns();
  Result<Folder> folder = ShardFileWriter::open(options_.roots, order.directory, options_.shard);
  if (!folder) return tl::unexpected(folder.error());
  const std::string name = shard_file_name(options_.shard);
  if (link_unchanged(order, snapshot, folder->in(name), done)) return {};
  auto writer = ShardFileWriter::create(std::move(*folder), options_.shard, snapshot.info);
  if (!writer) return tl::unexpected(writer.error());
  Status written = snapshot.read([&](const StoredChunk& chunk) -> Status {
    const Status status = (*writer)->add(chunk);
    return status ? pace(bytes_of(chunk)) : status;
  });
  if (written) written = (*writer)->finish();
  if (!written) return written;
  done.bytes = (*writer)->bytes();
  done.checksum = (*writer)->checksum();
  log_("wrote '" + (fs::path(order.directory) / name).string() + "': the " + describe(snapshot.info) +
       printed(", %.1f MB in %.2f s", static_cast<double>(done.bytes) * 1e-6,
               static_cast<double>(steady_ns() - started) * 1e-9));
  return {};
}

// A checkpoint of this round may be there already. If this shard's chunks in it are whole and have the checksums of the
// snapshot's, its file becomes ours, and nothing is written.
bool CheckpointService::link_unchanged(const WriteCheckpoint& order, const PinnedSnapshot& snapshot,
                                       const std::string& file, CheckpointDone& done) {
  const Result<Folder> older = options_.roots.open(without_suffix(order.directory));
  if (!older) return false;
  const std::string target = older->through();
  const Result<Manifest> manifest = open_checkpoint(target);
  if (!manifest) return false;
  const auto shard = std::ranges::find(manifest->shards, options_.shard, &ManifestShard::shard);
  if (shard == manifest->shards.end()) return false;
  std::map<ChunkIndex, std::string> headers;  // with the checksums of the arrays
  const Status collected = snapshot.read([&](const StoredChunk& stored) -> Status {
    StoredChunk chunk{stored.chunk, {stored.entries.front()}};
    std::string sealed;
    if (Status status = records::rename_job(chunk, JobId(0), sealed); !status) return status;
    headers.emplace(chunk.chunk, std::move(sealed));
    return pace(bytes_of(stored));
  });
  if (!collected) return false;
  std::size_t same = 0;
  CheckpointVisitor visitor;
  visitor.chunk = [&](const StoredChunk& there) -> Status {
    const auto ours = headers.find(there.chunk);
    if (ours == headers.end() || ours->second != there.entries.front().value) {
      return fail(ErrorCode::kNotFound, "another state");
    }
    ++same;
    return pace(bytes_of(there));
  };
  visitor.flaw = [](const std::string& what) -> Status { return fail(ErrorCode::kStore, what); };
  if (!read_checkpoint(target, *manifest, {options_.shard}, visitor) || same != headers.size()) return false;
  std::error_code error;
  fs::remove(file, error);
  fs::create_hard_link(older->in(shard->file), file, error);
  if (error) return false;
  done.bytes = shard->bytes;
  done.checksum = shard->checksum;
  done.unchanged = true;
  return true;
}

// Both are names in one folder.
Status CheckpointService::seal_parts(const SealCheckpoint& order, CheckpointDone& done) {
  const fs::path partial(order.directory), target(order.target);
  if (partial.parent_path() != target.parent_path()) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + order.directory + "' cannot become '" + order.target + "': they are not in one directory");
  }
  const Result<Folder> parent = options_.roots.open(partial.parent_path().string());
  if (!parent) return tl::unexpected(parent.error());
  const std::string sealed = parent->in(target.filename().string());
  const Result<bool> unchanged = seal_checkpoint(
      parent->in(partial.filename().string()), sealed, order.manifest,
      [&](const std::string& folder, const LargePart& large) {
        Status written = write_part(order, folder, sealed, large);
        if (written) done.bytes += large.bytes;
        return written;
      },
      order.keep != 0);
  if (!unchanged) return tl::unexpected(parent->named(unchanged.error()));
  done.unchanged = *unchanged;
  if (order.keep == 0) return {};
  for (const std::string& name : rotate_checkpoints(*parent, target.filename().string(), order.keep)) {
    log_("removed '" + (target.parent_path() / name).string() + "': newer checkpoints are there (checkpoint.keep)");
  }
  return {};
}

// A checkpoint of this round may have it already: then its file becomes ours, if that is whole.
Status CheckpointService::write_part(const SealCheckpoint& order, const std::string& folder, const std::string& sealed,
                                     const LargePart& large) {
  const std::string file = part_file_name(large);
  const auto paced = [this](std::uint64_t, std::span<const std::byte> piece) { return pace(piece.size()); };
  const Result<Folder> older = Folder::open(sealed);
  if (older && read_part_file(older->through(), large, paced)) {
    const fs::path ours = fs::path(folder) / file;
    std::error_code error;
    fs::remove(ours, error);
    fs::create_hard_link(older->in(file), ours, error);
    if (!error) return {};
  }
  const Status written = write_part_file(folder, large, [&](std::uint64_t offset) -> Result<std::vector<std::byte>> {
    // It may be the store's disk, which is needed more.
    Status may = room_on_disk(folder, kPartBytes + kSpareBytes);
    if (may) may = pace(kPartBytes);
    if (!may) return tl::unexpected(may.error());
    return store_.large_parts().read(order.job, large, offset);
  });
  return written ? written : fail(written.error().code, "server 0: " + written.error().message);
}

Status CheckpointService::load_shard(const LoadCheckpoint& order, CheckpointDone& done) {
  const std::string me = "server " + std::to_string(options_.shard.value) + ": ";
  const Result<Folder> folder = options_.roots.open(order.directory);
  if (!folder) {
    return fail(folder.error().code,
                me + folder.error().message + "; restore from a directory that every server sees under that path");
  }
  const Status loaded = load_from(folder->through(), order, me, done);
  return loaded ? loaded : tl::unexpected(folder->named(loaded.error()));
}

Status CheckpointService::load_from(const std::string& folder, const LoadCheckpoint& order, const std::string& me,
                                    CheckpointDone& done) {
  const std::uint64_t started = steady_ns();
  const auto text = read_small_file((fs::path(folder) / kManifestFile).string(), kMaxManifestBytes);
  if (!text) {
    return fail(text.error().code,
                me + text.error().message + "; restore from a directory that every server sees under that path");
  }
  if (checksum_hex(*text) != order.manifest) {
    return fail(ErrorCode::kStore, me + "'" + order.directory + "' has another manifest here than on server 0; " +
                                       "restore from a directory that all servers share");
  }
  const Result<Manifest> manifest = open_checkpoint(folder);
  if (!manifest) return fail(manifest.error().code, me + manifest.error().message);
  const Result<Layout> layout = Layout::with_owners(manifest->tensors, manifest->chunk_elements, order.owners);
  if (!layout) return tl::unexpected(layout.error());
  SnapshotInfo info{order.job, order.name,    manifest->round, layout->hash(), job_of(*manifest).optimizer.name,
                    0,         options_.shard};
  for (const ChunkOwner owner : layout->owners()) info.chunks += owner.shard == options_.shard ? 1 : 0;
  if (order.parts) {
    if (Status loaded = load_parts(folder, order, *manifest, done); !loaded) return loaded;
  }
  if (info.chunks == 0) return {};

  auto writer = store_.begin(info);
  if (!writer) return tl::unexpected(writer.error());
  std::set<ChunkIndex> ours;
  for (std::uint32_t c = 0; c < layout->chunks(); ++c) {
    if (layout->owner(ChunkIndex(c)).shard == options_.shard) ours.insert(ChunkIndex(c));
  }
  CheckpointVisitor visitor;
  visitor.chunk = [&](const StoredChunk& stored) -> Status {
    moved_.fetch_add(bytes_of(stored), std::memory_order_relaxed);
    if (!ours.contains(stored.chunk)) return orders_.go_on();
    StoredChunk chunk = stored;
    std::string sealed;
    Status status = records::rename_job(chunk, order.job, sealed);
    if (status) status = (*writer)->add(chunk);
    done.bytes += bytes_of(chunk);
    return status ? orders_.go_on() : status;
  };
  visitor.flaw = [&](const std::string& what) -> Status {
    return fail(ErrorCode::kStore,
                me + "checkpoint '" + order.directory + "': " + what + "; `tributary checkpoint verify` says more");
  };
  const std::set<ShardIndex> whole = files_to_check(*manifest, *layout, options_.shard);
  if (Status read = read_chunks(folder, *manifest, ours, whole, visitor); !read) return read;
  if (Status finished = (*writer)->finish(); !finished) return finished;
  log_("loaded '" + order.directory + "' as the " + describe(info) +
       printed(": %u chunks, %.1f MB in %.2f s", info.chunks, static_cast<double>(done.bytes) * 1e-6,
               static_cast<double>(steady_ns() - started) * 1e-9));
  return {};
}

// Parts of a restore that fails go when the coordinator says so (DropCheckpoint), or at its next start.
Status CheckpointService::load_parts(const std::string& folder, const LoadCheckpoint& order, const Manifest& manifest,
                                     CheckpointDone& done) {
  LargePartStore& parts = store_.large_parts();
  for (const LargePart& large : large_parts_of(manifest.rank_states)) {
    Status loaded = parts.begin(order.job, large);
    if (loaded) {
      loaded = read_part_file(folder, large, [&](std::uint64_t offset, std::span<const std::byte> piece) {
        done.bytes += piece.size();
        moved_.fetch_add(piece.size(), std::memory_order_relaxed);
        Status added = parts.add(order.job, large, offset, piece);
        return added ? orders_.go_on() : added;
      });
    }
    if (loaded) loaded = parts.finish(order.job, large);
    if (!loaded) return fail(loaded.error().code, "server 0: " + loaded.error().message);
  }
  return {};
}

}  // namespace tributary
