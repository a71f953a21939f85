#include "server/copies/copy_fetcher.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "server/chunk/chunk_record.h"
#include "server/copies/copy_port.h"

namespace tributary {
namespace {

constexpr std::uint64_t kTurnNs = 1'000'000;  // between two looks whether a copy may go on
constexpr long kAnswerPollMs = 100;

// A chunk as it came, and who holds its bytes.
struct Arrived {
  CopiedChunk head;
  std::vector<zmq::message_t> values;
  StoredChunk chunk;
};

Error malformed(const Fetch& fetch, const std::string& what) {
  return {ErrorCode::kMalformed, "server " + std::to_string(fetch.from.shard.value) + " sent " + what};
}

// Takes one message apart. kUnavailable: none is there.
Result<Arrived> receive(zmq::socket_t& socket, const Fetch& fetch) {
  zmq::message_t first;
  if (!receive_now(socket, first)) return fail(ErrorCode::kUnavailable, "nothing came");
  std::vector<zmq::message_t> rest;
  for (bool more = first.more(); more;) {
    zmq::message_t frame;
    if (!receive_now(socket, frame)) return tl::unexpected(malformed(fetch, "half a message"));
    more = frame.more();
    if (rest.size() < kMaxChunkEntries) rest.push_back(std::move(frame));
  }
  Result<ControlMessage> message = decode_control(bytes_of(first));
  if (!message) return tl::unexpected(message.error());
  auto* head = std::get_if<CopiedChunk>(&*message);
  if (!head || head->keys.size() != rest.size()) {
    return tl::unexpected(malformed(fetch, "something else than a chunk of a snapshot"));
  }
  return Arrived{std::move(*head), std::move(rest), {}};
}

// Checks that it is the chunk that was asked for, intact, and names its entries.
Status check(Arrived& it, const Fetch& fetch, std::uint32_t place, const std::optional<SnapshotInfo>& info) {
  const CopiedChunk& head = it.head;
  if (!(head.want == WantChunk{fetch.job, fetch.round, fetch.shard, place})) {
    return tl::unexpected(malformed(fetch, "another chunk than the one that was asked for"));
  }
  if (!head.ok) return fail(head.code, head.message);
  const bool same = !info || (info->job_name == head.job_name && info->layout_hash == head.layout_hash &&
                              info->optimizer == head.optimizer && info->chunks == head.chunks);
  if (!same || place >= head.chunks || head.chunks > kMaxChunks)
    return tl::unexpected(malformed(fetch, "chunks of several snapshots"));
  it.chunk.chunk = head.chunk;
  for (std::size_t i = 0; i < it.values.size(); ++i) {
    const auto* text = reinterpret_cast<const char*>(head.keys[i].data());
    std::string key(text, head.keys[i].size());
    const bool fits = key.size() >= kMinChunkKey && key.size() <= kMaxChunkKey && chunk_of_key(key) == head.chunk;
    if (!fits || (part_of_key(key) == kHeaderPart) != (i == 0)) {
      return tl::unexpected(malformed(fetch, "a chunk with an entry that is not the chunk's"));
    }
    it.chunk.entries.push_back({std::move(key), {static_cast<const char*>(it.values[i].data()), it.values[i].size()}});
  }
  if (it.chunk.entries.empty()) return tl::unexpected(malformed(fetch, "a chunk without entries"));
  const std::string what = "the header of chunk " + std::to_string(head.chunk.value) + " from server " +
                           std::to_string(fetch.from.shard.value);
  const auto header = records::unseal_chunk(it.chunk.entries.front().value, what);
  if (!header) return tl::unexpected(header.error());
  if (header->job != fetch.job || header->round != fetch.round || header->chunk != head.chunk) {
    return tl::unexpected(malformed(fetch, "a chunk whose header names another one"));
  }
  return records::check_arrays(*header, it.chunk);
}

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

void CopyFetcher::order(OrderThread& thread, const std::shared_ptr<Fetch>& fetch) {
  const auto work = [this, fetch, &thread]() -> Status {
    if (fetch->begun.exchange(true)) return {};
    end(fetch, read(*fetch, thread));
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
  if (!fetch.paced) return;
  pace_.took(bytes);
  const std::uint64_t now = steady_ns();
  disk_free_ns_ = now + disk_.take(bytes, now);
}

Result<zmq::socket_t> CopyFetcher::connect(const Fetch& fetch) {
  zmq::socket_t socket(context_, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  try {
    set_common_options(socket, CopyPort::kMaxFrame, static_cast<int>(2 * kWindow));
    if (options_.own) connect_with(socket, *options_.own, fetch.from.key);
    socket.connect(fetch.from.copy_endpoint);
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kUnavailable, "server " + std::to_string(fetch.from.shard.value) + " cannot be reached at " +
                                             fetch.from.copy_endpoint + ": " + e.what());
  }
  return socket;
}

Status CopyFetcher::read(Fetch& fetch, OrderThread& thread) {
  const std::uint64_t begun_ns = steady_ns();
  Result<zmq::socket_t> connected = connect(fetch);
  if (!connected) return tl::unexpected(connected.error());
  zmq::socket_t socket = std::move(*connected);
  std::unique_ptr<SnapshotWriter> writer;
  std::optional<SnapshotInfo> info;
  std::uint32_t asked = 0, written = 0;
  bool asked_again = false;
  std::uint64_t heard_ms = steady_ms(), asked_ms = heard_ms;
  while (!info || written < info->chunks) {
    while (asked < (info ? std::min(info->chunks, written + kWindow) : 1)) {
      if (const Status turn = wait_for_turn(fetch, thread); !turn) return turn;
      const auto bytes = encode_control(WantChunk{fetch.job, fetch.round, fetch.shard, asked});
      zmq::message_t frame(bytes.data(), bytes.size());
      if (!send_now(socket, frame, false)) break;  // it is not connected yet, or takes nothing
      ++asked;
      asked_ms = steady_ms();
      if (asked == written + 1 && !std::exchange(asked_again, false))
        heard_ms = asked_ms;  // nothing was to come before
    }
    if (const Status stays = thread.go_on(); !stays) return stays;
    if (!fetch.wanted) return fail(ErrorCode::kStopped, "nobody wants it any more");
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, kAnswerPollMs);
    if (item.revents == 0) {
      const std::uint64_t now = steady_ms();
      if (now >= std::max(heard_ms, asked_ms) + kAgainMs && now < heard_ms + kPatienceMs) {
        // The question or its answer was lost with a connection, or the port did not know this server yet.
        Result<zmq::socket_t> again = connect(fetch);
        if (!again) return tl::unexpected(again.error());
        socket = std::move(*again);
        asked = written;
        asked_again = true;
      }
      if (now < heard_ms + kPatienceMs) continue;
      return fail(ErrorCode::kUnavailable, "server " + std::to_string(fetch.from.shard.value) + " at " +
                                               fetch.from.copy_endpoint + " has not answered for " +
                                               std::to_string(kPatienceMs / 1000) +
                                               " s; is that port open between the servers' machines?");
    }
    Result<Arrived> arrived = receive(socket, fetch);
    if (!arrived) return tl::unexpected(arrived.error());
    heard_ms = steady_ms();
    if (const Status right = check(*arrived, fetch, written, info); !right) return right;
    if (!info) {
      const CopiedChunk& head = arrived->head;
      info = SnapshotInfo{fetch.job,      head.job_name, fetch.round, head.layout_hash,
                          head.optimizer, head.chunks,   fetch.shard};
      auto begun = store_.begin(*info);
      if (!begun) return tl::unexpected(begun.error());
      writer = std::move(*begun);
    }
    if (const Status added = writer->add(arrived->chunk); !added) return added;
    ++written;
    const std::uint64_t bytes = bytes_of(arrived->chunk);
    fetch.bytes.fetch_add(bytes, std::memory_order_relaxed);
    took(fetch, bytes);
  }
  if (const Status finished = writer->finish(); !finished) return finished;
  log_("has server " + std::to_string(fetch.shard.value) + "'s part of round " + std::to_string(fetch.round.value) +
       " of job '" + info->job_name + "' from server " + std::to_string(fetch.from.shard.value) +
       printed(": %.1f MB in %.2f s", static_cast<double>(writer->bytes()) * 1e-6,
               static_cast<double>(steady_ns() - begun_ns) * 1e-9));
  return {};
}

}  // namespace tributary
