#include "server/copies/chunk_reader.h"

#include <utility>

#include "common/base/clock.h"
#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "server/chunk/chunk_record.h"
#include "server/copies/copy_port.h"

namespace tributary {
namespace {

using Arrived = ChunkReader::Arrived;

std::string in_words(const ServerEntry& server) {
  return "server " + std::to_string(server.shard.value);
}

Error malformed(const ServerEntry& from, const std::string& what) {
  return {ErrorCode::kMalformed, in_words(from) + " sent " + what};
}

// Takes one message apart. kUnavailable: none is there.
Result<Arrived> receive(zmq::socket_t& socket, const ServerEntry& from) {
  zmq::message_t first;
  if (!receive_now(socket, first)) return fail(ErrorCode::kUnavailable, "nothing came");
  std::vector<zmq::message_t> rest;
  for (bool more = first.more(); more;) {
    zmq::message_t frame;
    if (!receive_now(socket, frame)) return tl::unexpected(malformed(from, "half a message"));
    more = frame.more();
    if (rest.size() < kMaxChunkEntries) rest.push_back(std::move(frame));
  }
  Result<ControlMessage> message = decode_control(bytes_of(first));
  if (!message) return tl::unexpected(message.error());
  auto* head = std::get_if<CopiedChunk>(&*message);
  if (!head || head->keys.size() != rest.size()) {
    return tl::unexpected(malformed(from, "something else than a chunk of a snapshot"));
  }
  return Arrived{std::move(*head), std::move(rest), {}};
}

// Checks that it is the chunk that was asked for, intact, and names its entries.
Status check(Arrived& it, const ServerEntry& from, const WantChunk& want) {
  const CopiedChunk& head = it.head;
  if (!(head.want == want)) {
    return tl::unexpected(malformed(from, "another chunk than the one that was asked for"));
  }
  if (!head.ok) return fail(head.code, head.message);
  if (want.place >= head.chunks || head.chunks > kMaxChunks) {
    return tl::unexpected(malformed(from, "a chunk that its snapshot does not have"));
  }
  it.chunk.chunk = head.chunk;
  for (std::size_t i = 0; i < it.values.size(); ++i) {
    const auto* text = reinterpret_cast<const char*>(head.keys[i].data());
    std::string key(text, head.keys[i].size());
    const bool fits = key.size() >= kMinChunkKey && key.size() <= kMaxChunkKey && chunk_of_key(key) == head.chunk;
    if (!fits || (part_of_key(key) == kHeaderPart) != (i == 0)) {
      return tl::unexpected(malformed(from, "a chunk with an entry that is not the chunk's"));
    }
    it.chunk.entries.push_back({std::move(key), {static_cast<const char*>(it.values[i].data()), it.values[i].size()}});
  }
  if (it.chunk.entries.empty()) return tl::unexpected(malformed(from, "a chunk without entries"));
  const std::string what = "the header of chunk " + std::to_string(head.chunk.value) + " from " + in_words(from);
  const auto header = records::unseal_chunk(it.chunk.entries.front().value, what);
  if (!header) return tl::unexpected(header.error());
  if (header->job != want.job || header->round != want.round || header->chunk != head.chunk) {
    return tl::unexpected(malformed(from, "a chunk whose header names another one"));
  }
  return records::check_arrays(*header, it.chunk);
}

}  // namespace

Result<zmq::socket_t*> ChunkReader::socket_to(const ServerEntry& server) {
  const auto known = sockets_.find(server.copy_endpoint);
  if (known != sockets_.end()) return &known->second;
  zmq::socket_t socket(context_, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  try {
    set_common_options(socket, CopyPort::kMaxFrame, kMostAsked);
    if (own_) connect_with(socket, *own_, server.key);
    socket.connect(server.copy_endpoint);
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kUnavailable,
                in_words(server) + " cannot be reached at " + server.copy_endpoint + ": " + e.what());
  }
  return &sockets_.emplace(server.copy_endpoint, std::move(socket)).first->second;
}

Status ChunkReader::ask(const ServerEntry& from, const WantChunk& want) {
  if (asked_.empty()) heard_ms_ = tried_ms_ = steady_ms();  // nothing was to come before
  asked_.push_back({from, want});
  return send_open();
}

Status ChunkReader::send_open() {
  for (Question& question : asked_) {
    if (question.sent) continue;
    const Result<zmq::socket_t*> socket = socket_to(question.from);
    if (!socket) return tl::unexpected(socket.error());
    const auto bytes = encode_control(question.want);
    zmq::message_t frame(bytes.data(), bytes.size());
    if (!send_now(**socket, frame, false)) return {};  // it is not connected yet, or takes nothing
    question.sent = true;
  }
  return {};
}

Result<std::optional<Arrived>> ChunkReader::next() {
  if (const Status sent = send_open(); !sent) return tl::unexpected(sent.error());
  const Question oldest = asked_.front();
  const Result<zmq::socket_t*> socket = socket_to(oldest.from);
  if (!socket) return tl::unexpected(socket.error());
  zmq::pollitem_t item{(*socket)->handle(), 0, ZMQ_POLLIN, 0};
  zmq_poll(&item, 1, kPollMs);
  if (item.revents == 0) {
    if (const Status waits = wait_longer(oldest); !waits) return tl::unexpected(waits.error());
    return std::nullopt;
  }
  Result<Arrived> arrived = receive(**socket, oldest.from);
  if (!arrived) return tl::unexpected(arrived.error());
  heard_ms_ = tried_ms_ = steady_ms();
  asked_.pop_front();
  if (const Status right = check(*arrived, oldest.from, oldest.want); !right) return tl::unexpected(right.error());
  return std::optional(std::move(*arrived));
}

// The question or its answer was lost with a connection, or the port did not know this server yet: it connects again.
Status ChunkReader::wait_longer(const Question& oldest) {
  const std::uint64_t now = steady_ms();
  if (now >= heard_ms_ + kPatienceMs) {
    return fail(ErrorCode::kUnavailable, in_words(oldest.from) + " at " + oldest.from.copy_endpoint +
                                             " has not answered for " + std::to_string(kPatienceMs / 1000) +
                                             " s; is that port open between the servers' machines?");
  }
  if (now < tried_ms_ + kAgainMs) return {};
  tried_ms_ = now;
  sockets_.erase(oldest.from.copy_endpoint);
  for (Question& question : asked_) {
    if (question.from.copy_endpoint == oldest.from.copy_endpoint) question.sent = false;
  }
  return {};
}

}  // namespace tributary
