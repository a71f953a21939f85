#include "tests/sim/disk/checkpoints_sim.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "common/base/checksum.h"
#include "common/files/checkpoint_manifest.h"
#include "server/chunk/chunk_record.h"

namespace tributary::sim {
namespace {

// The chunk with a header that names `job`.
Result<Disk::Piece> renamed(Disk::Piece piece, JobId job) {
  std::string& sealed = piece.entries.front().second;
  Result<records::ChunkHeader> header = records::unseal_chunk(sealed, "the header of a chunk");
  if (!header) return tl::unexpected(header.error());
  header->job = job;
  sealed = records::seal(*header);
  return piece;
}

// As a reader of checkpoints finds it (server/checkpoint/checkpoint_reader.h).
Status check(const Disk::Piece& piece, ChunkIndex chunk) {
  const auto header = records::unseal_chunk(piece.entries.front().second, "the header of a chunk");
  return header ? records::check_arrays(*header, piece.stored(chunk)) : Status(tl::unexpected(header.error()));
}

}  // namespace

std::uint64_t CheckpointFiles::File::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [index, piece] : chunks) {
    for (const auto& [key, value] : piece.entries) sum += key.size() + value.size();
  }
  return sum;
}

std::string CheckpointFiles::File::checksum() const {
  Checksum128 sum;
  for (const auto& [index, piece] : chunks) {
    for (const auto& [key, value] : piece.entries) sum.add(key.data(), key.size()).add(value.data(), value.size());
  }
  return sum.hex();
}

const CheckpointFiles::Directory* CheckpointFiles::whole(const std::string& path) const {
  const auto found = directories.find(path);
  return found == directories.end() || !found->second.complete ? nullptr : &found->second;
}

void CheckpointFiles::rotate(const std::string& path, std::uint32_t keep) {
  const std::string job = path.substr(0, path.rfind("-round-") + 7);
  std::vector<std::pair<std::uint64_t, std::string>> older;
  for (const auto& [name, directory] : directories) {
    if (directory.rotates != 0 && name.starts_with(job)) older.emplace_back(directory.rotates, name);
  }
  std::ranges::sort(older, std::ranges::greater());
  for (std::size_t i = keep; i < older.size(); ++i) directories.erase(older[i].second);
}

CheckpointFiles::File* CheckpointFiles::file(const std::string& directory, const std::string& name) {
  const auto in = directories.find(directory);
  if (in == directories.end()) return nullptr;
  const auto found = in->second.files.find(name);
  return found == in->second.files.end() ? nullptr : &found->second;
}

void CheckpointsSim::queue(std::uint64_t operation, Step step) {
  Order& order = orders_.emplace_back();
  order.done.operation = operation;
  order.step = std::move(step);
  if (orders_.size() == 1) owner_.after(step_ns_, [this] { work(); });
}

void CheckpointsSim::work() {
  Order& order = orders_.front();
  if (const std::optional<Status> over = order.step(order.done)) {
    if (!*over) {
      order.done.ok = false;
      order.done.code = over->error().code;
      order.done.message = over->error().message;
    }
    done_(order.done);
    orders_.pop_front();
  }
  if (!orders_.empty()) owner_.after(step_ns_, [this] { work(); });
}

void CheckpointsSim::order(const WriteCheckpoint& order) {
  const auto snapshot = std::make_shared<Result<PinnedSnapshot>>(store_.pin(order.job, order.round, shard_));
  const auto written = std::make_shared<CheckpointFiles::File>();
  queue(order.operation, [this, order, snapshot, written](CheckpointDone& done) -> std::optional<Status> {
    if (!*snapshot) return tl::unexpected(snapshot->error());
    return write_on(order, **snapshot, *written, done);
  });
}

// The next chunk goes into the file; if that has been taken away meanwhile, nowhere.
std::optional<Status> CheckpointsSim::write_on(const WriteCheckpoint& order, const PinnedSnapshot& snapshot,
                                               CheckpointFiles::File& written, CheckpointDone& done) {
  const std::string name = shard_file_name(shard_);
  if (written.chunks.empty()) files_.directories[order.directory].files[name] = {};
  if (written.chunks.size() == snapshot.chunks.size()) {
    done.bytes = written.bytes();
    done.checksum = written.checksum();
    return Status();
  }
  const ChunkIndex next = snapshot.chunks[written.chunks.size()];
  Status status = snapshot.read([&](const StoredChunk& stored) -> Status {
    if (stored.chunk != next) return {};
    Result<Disk::Piece> piece = renamed(Disk::Piece::of(stored), JobId(0));
    if (!piece) return tl::unexpected(piece.error());
    written.chunks[next.value] = *piece;
    if (CheckpointFiles::File* file = files_.file(order.directory, name)) file->chunks[next.value] = std::move(*piece);
    return {};
  });
  if (status) return std::nullopt;
  if (const auto in = files_.directories.find(order.directory); in != files_.directories.end()) {
    in->second.files.erase(name);
  }
  status.error().message = "server " + std::to_string(shard_.value) + ": " + status.error().message;
  return status;
}

void CheckpointsSim::order(const SealCheckpoint& order) {
  queue(order.operation, [this, order](CheckpointDone& done) { return std::optional(seal(order, done)); });
}

Status CheckpointsSim::seal(const SealCheckpoint& order, CheckpointDone& done) {
  const Result<Manifest> manifest = manifest_from_json(order.manifest);
  if (!manifest) return tl::unexpected(manifest.error());
  const auto partial = files_.directories.find(order.directory);
  std::map<std::string, CheckpointFiles::File> files;
  for (const ManifestShard& shard : manifest->shards) {
    const CheckpointFiles::File* file = files_.file(order.directory, shard.file);
    if (!file || file->bytes() != shard.bytes) return fail(ErrorCode::kNotFound, "a shard's file is not there");
    files[shard.file] = *file;
  }
  std::map<LargePart, std::vector<std::byte>> parts;
  for (const LargePart& large : large_parts_of(manifest->rank_states)) {
    Result<std::vector<std::byte>> bytes = large_part(order.job, large);
    if (!bytes) return tl::unexpected(bytes.error());
    parts.emplace(large, std::move(*bytes));
  }
  files_.directories.erase(partial);
  if (const auto* there = files_.whole(order.target)) {
    const bool same = std::ranges::equal(files, there->files, [](const auto& a, const auto& b) {
      return a.first == b.first && a.second.checksum() == b.second.checksum();
    });
    done.unchanged = same;
    return same ? Status() : fail(ErrorCode::kStore, "'" + order.target + "' holds another state of that round");
  }
  const std::uint64_t rotates = order.keep == 0 ? 0 : ++files_.rotating;
  files_.directories[order.target] = {std::move(files), order.manifest, std::move(parts), true, rotates};
  if (rotates == 0) return {};
  files_.sealed(order.target);
  files_.rotate(order.target, order.keep);
  return {};
}

Result<std::vector<std::byte>> CheckpointsSim::large_part(JobId job, const LargePart& large) const {
  std::vector<std::byte> bytes;
  while (bytes.size() < large.bytes) {
    const auto piece = store_.large_parts().read(job, large, bytes.size());
    if (!piece) return tl::unexpected(piece.error());
    bytes.insert(bytes.end(), piece->begin(), piece->end());
  }
  return bytes;
}

// The chunks of one shard out of a checkpoint's files.
class CheckpointsSim::Loading {
 public:
  Loading(StoreSim& store, const CheckpointFiles& files, ShardIndex shard, const LoadCheckpoint& order)
      : store_(store), files_(files), shard_(shard), order_(order) {}

  std::optional<Status> step(CheckpointDone& done) {
    const std::optional<Status> over = handle_ ? go_on(done) : begin();
    if (over && !*over && handle_) store_.discard(*handle_);
    return over;
  }

 private:
  std::optional<Status> begin() {
    const CheckpointFiles::Directory* directory = files_.whole(order_.directory);
    if (!directory) return fail(ErrorCode::kNotFound, "there is no checkpoint");
    if (checksum_hex(directory->manifest) != order_.manifest) return fail(ErrorCode::kStore, "another manifest");
    Result<Manifest> manifest = manifest_from_json(directory->manifest);
    if (!manifest) return tl::unexpected(manifest.error());
    manifest_ = std::move(*manifest);
    const Result<Layout> layout = Layout::with_owners(manifest_.tensors, manifest_.chunk_elements, order_.owners);
    if (!layout) return tl::unexpected(layout.error());
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) {
      if (layout->owner(ChunkIndex(c)).shard == shard_) chunks_.emplace_back(c);
    }
    if (order_.parts) {
      if (Status loaded = load_parts(*directory); !loaded) return loaded;
    }
    if (chunks_.empty()) return Status();
    handle_ = store_.create({order_.job, order_.name, manifest_.round, layout->hash(), job_of(manifest_).optimizer.name,
                             static_cast<std::uint32_t>(chunks_.size()), shard_});
    return std::nullopt;
  }

  Status load_parts(const CheckpointFiles::Directory& directory) {
    LargePartStore& parts = store_.large_parts();
    for (const auto& [large, bytes] : directory.large_parts) {
      if (Status room = parts.begin(order_.job, large); !room) return room;
      for (std::uint64_t at = 0; at < bytes.size(); at += kPartBytes) {
        const auto piece = std::span(bytes).subspan(at, std::min<std::size_t>(kPartBytes, bytes.size() - at));
        if (Status added = parts.add(order_.job, large, at, piece); !added) return added;
      }
      if (Status whole = parts.finish(order_.job, large); !whole) return whole;
    }
    return {};
  }

  std::optional<Status> go_on(CheckpointDone& done) {
    if (next_ == chunks_.size()) {
      store_.sync(*handle_);
      return store_.record(*handle_);
    }
    const ChunkIndex chunk = chunks_[next_++];
    const CheckpointFiles::Directory* directory = files_.whole(order_.directory);
    const auto& file = directory->files.at(shard_file_name(manifest_.chunk_shards[chunk.value]));
    const auto found = file.chunks.find(chunk.value);
    if (found == file.chunks.end()) return fail(ErrorCode::kStore, "a chunk is missing");
    if (Status whole = check(found->second, chunk); !whole) return whole;
    Result<Disk::Piece> piece = renamed(found->second, order_.job);
    if (!piece) return tl::unexpected(piece.error());
    if (Status written = store_.write(*handle_, manifest_.view, chunk, std::move(*piece)); !written) return written;
    ++done.bytes;
    return std::nullopt;
  }

  StoreSim& store_;
  const CheckpointFiles& files_;
  const ShardIndex shard_;
  const LoadCheckpoint order_;
  Manifest manifest_;
  std::vector<ChunkIndex> chunks_;  // to be loaded here
  std::size_t next_ = 0;
  std::optional<StoreSim::Handle> handle_;
};

void CheckpointsSim::order(const LoadCheckpoint& order) {
  const auto loading = std::make_shared<Loading>(store_, files_, shard_, order);
  queue(order.operation, [loading](CheckpointDone& done) { return loading->step(done); });
}

void CheckpointsSim::drop(const DropCheckpoint& order) {
  queue(0, [this, order](CheckpointDone& done) -> std::optional<Status> {
    done.unchanged = order.job.value == 0;
    if (const auto in = files_.directories.find(order.directory); in != files_.directories.end()) {
      in->second.files.erase(shard_file_name(shard_));
      if (in->second.files.empty()) files_.directories.erase(in);
    }
    if (order.job.value == 0) return Status();
    const Status dropped = store_.drop_job(order.job);
    return dropped ? store_.large_parts().drop(order.job, {}) : dropped;
  });
}

}  // namespace tributary::sim
