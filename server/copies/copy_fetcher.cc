#include "server/copies/copy_fetcher.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/daemon/daemon_thread.h"
#include "server/chunk/chunk_record.h"
#include "server/copies/chunk_reader.h"

namespace tributary {
namespace {

constexpr std::uint64_t kTurnNs = 1'000'000;  // between two looks whether a copy may go on

// The chunks that a fetch reads, and where.
class Wanted {
 public:
  struct Chunk {
    ChunkIndex chunk;
    ShardIndex shard;         // whose part has it,
    std::uint32_t place = 0;  // at this place
  };
  explicit Wanted(const Fetch& fetch) : fetch_(fetch) {
    if (!fetch.deal) return;
    const DealChunks& deal = *fetch.deal;
    for (const DealtPart& part : deal.parts) from_[part.shard] = part.from;
    std::map<ShardIndex, std::uint32_t> places;
    for (std::uint32_t c = 0; c < deal.owners.size(); ++c) {
      const ShardIndex shard = deal.owners_before[c].shard;
      const std::uint32_t place = places[shard]++;
      if (deal.owners[c].shard == fetch.shard) chunks_.push_back({ChunkIndex(c), shard, place});
    }
  }

  // A copy's count is known when the first chunk has come.
  std::optional<std::uint32_t> count() const {
    return fetch_.deal ? std::optional(static_cast<std::uint32_t>(chunks_.size())) : count_;
  }
  // Asks for the chunk with this number.
  Status ask(ChunkReader& reader, std::uint32_t number) const {
    if (!fetch_.deal) return reader.ask(fetch_.from, {fetch_.job, fetch_.round, fetch_.shard, number});
    const Chunk& chunk = chunks_[number];
    const auto from = from_.find(chunk.shard);
    if (from == from_.end()) {
      return fail(ErrorCode::kMalformed,
                  "the coordinator names no server for server " + std::to_string(chunk.shard.value) + "'s part");
    }
    return reader.ask(from->second, {fetch_.deal->before, fetch_.deal->round, chunk.shard, chunk.place});
  }
  // A part that this server has itself is not asked for.
  const Chunk* here(std::uint32_t number) const {
    if (!fetch_.deal || number >= chunks_.size()) return nullptr;
    const auto from = from_.find(chunks_[number].shard);
    return from != from_.end() && from->second.shard == fetch_.shard ? &chunks_[number] : nullptr;
  }
  // The snapshot that is made of them, by the first one; and does this one belong to it?
  SnapshotInfo info(const CopiedChunk& first) {
    if (!fetch_.deal) count_ = first.chunks;
    return {fetch_.job,      fetch_.deal ? fetch_.deal->name : first.job_name,
            fetch_.round,    first.layout_hash,
            first.optimizer, *count(),
            fetch_.shard};
  }
  Status fits(const CopiedChunk& it, const SnapshotInfo& info, std::uint32_t number) const {
    const bool same =
        it.layout_hash == info.layout_hash && it.optimizer == info.optimizer &&
        (fetch_.deal ? it.chunk == chunks_[number].chunk : it.job_name == info.job_name && it.chunks == info.chunks);
    return same ? Status() : fail(ErrorCode::kMalformed, "chunks of several snapshots came");
  }

 private:
  const Fetch& fetch_;
  std::map<ShardIndex, ServerEntry> from_;
  std::vector<Chunk> chunks_;
  std::optional<std::uint32_t> count_;
};

}  // namespace

CopyFetcher::CopyFetcher(Store& store, Options options, Post post, Log log)
    : store_(store),
      options_(std::move(options)),
      post_(std::move(post)),
      log_(std::move(log)),
      context_(1),
      disk_(TokenBucket::of_disk(options_.io_bytes_per_s)),
      beside_("copies", kMaxOrders, log_, OrderThread::Priority::kLow),
      awaited_("fills", kMaxOrders, log_) {}

void CopyFetcher::stop() {
  beside_.stop();
  awaited_.stop();
}

void CopyFetcher::fetch(std::shared_ptr<Fetch> fetch, Done done) {
  {
    const std::lock_guard lock(mutex_);
    waits_.emplace(fetch, std::move(done));
  }
  order(fetch->paced ? beside_ : awaited_, fetch);
}

// It may wait behind others: then the other thread begins with it, and the first one finds it begun.
void CopyFetcher::hurry(const std::shared_ptr<Fetch>& fetch) {
  if (!fetch->begun) order(awaited_, fetch);
}

void CopyFetcher::withdraw(const std::shared_ptr<Fetch>& fetch) {
  if (!fetch->begun.exchange(true)) end(fetch, fail(ErrorCode::kStopped, "nobody wants it any more"));
}

void CopyFetcher::order(OrderThread& thread, const std::shared_ptr<Fetch>& fetch) {
  const auto work = [this, fetch, &thread]() -> Status {
    if (fetch->begun.exchange(true)) return {};
    end(fetch, contained([&] { return fetch->deal ? deal(*fetch, thread) : read(*fetch, thread); }));
    return {};
  };
  const auto unbegun = [this, fetch](const Status& status) {
    if (!status && !fetch->begun.exchange(true)) end(fetch, status);
  };
  if (const Status taken = thread.order(work, unbegun); !taken) unbegun(taken);
}

void CopyFetcher::end(const std::shared_ptr<Fetch>& fetch, const Status& status) {
  Done done;
  {
    const std::lock_guard lock(mutex_);
    done = std::move(waits_.extract(fetch).mapped());
  }
  post_([done = std::move(done), status] { done(status); });
}

Status CopyFetcher::wait_for_turn(const Fetch& fetch, OrderThread& thread) {
  for (;;) {
    if (const Status stays = thread.go_on(); !stays) return stays;
    if (!fetch.wanted) return fail(ErrorCode::kStopped, "nobody wants it any more");
    // One that is hurried goes on at once, on this thread.
    if (!fetch.paced) return {};
    const std::uint64_t now = steady_ns();
    const bool goes = pace_.may_go(options_.trained ? options_.trained() : 0, now);
    if (goes && now >= disk_free_ns_) return {};
    if (const Status stays = thread.pause(kTurnNs); !stays) return stays;
  }
}

void CopyFetcher::took(const Fetch& fetch, std::uint64_t bytes) {
  moved_.fetch_add(bytes, std::memory_order_relaxed);
  if (fetch.deal) dealt_.fetch_add(bytes, std::memory_order_relaxed);
  if (!fetch.paced) return;
  pace_.took(bytes);
  const std::uint64_t now = steady_ns();
  disk_free_ns_ = now + disk_.take(bytes, now);
}

Status CopyFetcher::read(Fetch& fetch, OrderThread& thread) {
  const std::uint64_t begun_ns = steady_ns();
  ChunkReader reader(context_, options_.own.get());
  Wanted wanted(fetch);
  std::map<ShardIndex, PinnedSnapshot> here;
  std::unique_ptr<SnapshotWriter> writer;
  std::optional<SnapshotInfo> info;
  std::uint32_t asked = 0, written = 0;
  const auto take = [&](const CopiedChunk& head, StoredChunk chunk) -> Status {
    if (!info) {
      info = wanted.info(head);
      auto begun = store_.begin(*info);
      if (!begun) return tl::unexpected(begun.error());
      writer = std::move(*begun);
    }
    Status status = wanted.fits(head, *info, written++);
    std::string sealed;
    if (status && fetch.deal) status = records::rename_job(chunk, fetch.job, sealed);
    if (status) status = writer->add(chunk);
    const std::uint64_t bytes = bytes_of(chunk);
    fetch.bytes.fetch_add(bytes, std::memory_order_relaxed);
    took(fetch, bytes);
    return status;
  };
  while (wanted.count().value_or(1) > written) {
    while (asked < wanted.count().value_or(1) && reader.open() < kWindow) {
      const std::uint32_t number = asked++;
      if (wanted.here(number)) continue;
      Status status = wait_for_turn(fetch, thread);
      if (status) status = wanted.ask(reader, number);
      if (!status) return status;
    }
    if (const Status stays = thread.go_on(); !stays) return stays;
    if (!fetch.wanted) return fail(ErrorCode::kStopped, "nobody wants it any more");
    if (const Wanted::Chunk* chunk = wanted.here(written)) {
      if (const Status taken = take_here(*fetch.deal, chunk->shard, chunk->place, here, take); !taken) return taken;
      continue;
    }
    Result<std::optional<ChunkReader::Arrived>> arrived = reader.next();
    if (!arrived) {
      fetch.unreadable = arrived.error().code == ErrorCode::kStore;
      return tl::unexpected(arrived.error());
    }
    if (!*arrived) continue;
    if (const Status taken = take((*arrived)->head, std::move((*arrived)->chunk)); !taken) return taken;
  }
  if (!writer) return {};
  if (const Status finished = writer->finish(); !finished) return finished;
  log_("has " + (fetch.deal ? "its part" : "server " + std::to_string(fetch.shard.value) + "'s part") + " of round " +
       std::to_string(fetch.round.value) + " of job '" + info->job_name + "' from " +
       (fetch.deal ? std::string("the servers that had the chunks")
                   : "server " + std::to_string(fetch.from.shard.value)) +
       printed(": %.1f MB in %.2f s", static_cast<double>(writer->bytes()) * 1e-6,
               static_cast<double>(steady_ns() - begun_ns) * 1e-9));
  return {};
}

// Takes a chunk out of this server's own store.
Status CopyFetcher::take_here(const DealChunks& deal, ShardIndex shard, std::uint32_t place,
                              std::map<ShardIndex, PinnedSnapshot>& here, const Take& take) {
  if (!here.contains(shard)) {
    Result<PinnedSnapshot> pinned = store_.pin(deal.before, deal.round, shard);
    if (!pinned) return tl::unexpected(pinned.error());
    here.emplace(shard, std::move(*pinned));
  }
  const PinnedSnapshot& snapshot = here.at(shard);
  if (place >= snapshot.chunks.size()) return fail(ErrorCode::kStore, "a snapshot here has fewer chunks than it had");
  CopiedChunk head;
  head.job_name = snapshot.info.job_name;
  head.layout_hash = snapshot.info.layout_hash;
  head.optimizer = snapshot.info.optimizer;
  head.chunks = snapshot.info.chunks;
  head.chunk = snapshot.chunks[place];
  return snapshot.read_one(place, [&](const StoredChunk& chunk) -> Status {
    const auto header = records::unseal_chunk(chunk.entries.front().value, "the header of a chunk of a snapshot here");
    const Status intact = header ? records::check_arrays(*header, chunk) : tl::unexpected(header.error());
    return intact ? take(head, chunk) : intact;
  });
}

// This server's part of a job whose chunks go to other servers. All of it is there, or nothing.
Status CopyFetcher::deal(Fetch& fetch, OrderThread& thread) {
  Status status = take_along(fetch, thread);
  if (status) status = read(fetch, thread);
  if ((!status || !fetch.wanted) && !fetch.deal->large.empty()) {
    if (const Status dropped = store_.large_parts().drop(fetch.job, {}); !dropped) log_(dropped.error().message);
  }
  return status;
}

// The large parts of what ranks keep become the new job's as well.
Status CopyFetcher::take_along(Fetch& fetch, OrderThread& thread) {
  const auto goes_on = [&]() -> Status {
    return fetch.wanted ? thread.go_on() : fail(ErrorCode::kStopped, "nobody wants it any more");
  };
  const auto took_piece = [&](std::size_t bytes) {
    took(fetch, bytes);
    return goes_on();
  };
  Status status = goes_on();
  for (const LargePart& large : fetch.deal->large) {
    if (status) status = store_.large_parts().take_along(fetch.deal->before, fetch.job, large, took_piece);
  }
  return status;
}

}  // namespace tributary
