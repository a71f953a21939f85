#include "server/copies/copy_port.h"

#include <unistd.h>

#include <exception>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/config/config_check.h"
#include "common/daemon/background_thread.h"
#include "common/daemon/daemon_thread.h"
#include "common/security/socket_keys.h"
#include "common/system/host_port.h"
#include "common/wire/codec.h"
#include "common/wire/zmq_util.h"
#include "server/coordinator/cluster/lane_address.h"

namespace tributary {
namespace {

constexpr int kHighWater = 4;  // messages, of a reader
constexpr std::uint32_t kNoiseLines = 5;
constexpr std::size_t kConnectionsOfKey = 8;
constexpr std::size_t kMaxQuestion = 4096;  // bytes
constexpr long kPollMs = 1000;

}  // namespace

Result<std::unique_ptr<CopyPort>> CopyPort::start(Store& store, Options options, Logger logger) {
  Result<EventFd> wake = EventFd::create();
  if (!wake) return tl::unexpected(wake.error());
  std::unique_ptr<CopyPort> port(new CopyPort(store, std::move(options), std::move(logger), std::move(*wake)));
  if (const Status bound = port->bind(); !bound) return tl::unexpected(bound.error());
  port->thread_ = start_thread("copy port", port->logger_, [&self = *port] { self.run(); });
  return port;
}

CopyPort::CopyPort(Store& store, Options options, Logger logger, EventFd wake)
    : store_(store),
      options_(std::move(options)),
      logger_(logger),
      noise_(std::move(logger), kNoiseLines),
      wake_(std::move(wake)),
      context_(1),
      socket_(context_, zmq::socket_type::router) {}

Status CopyPort::bind() {
  if (Status free = check_ipc_free(options_.address); !free) return free;
  set_common_options(socket_, kMaxQuestion, kHighWater);
  if (options_.own) {
    accept_with(socket_, *options_.own);
    const auto decide = [this](const Admission::Shown& shown) -> Result<std::string> {
      if (!shown.key.empty() && admits(shown.key)) return shown.key;
      return fail(ErrorCode::kInvalidArgument, "no server of this cluster has that key");
    };
    ConnectionLimits limits;
    limits.of_key = [](const std::string&) { return kConnectionsOfKey; };
    auto admission = Admission::start(context_, socket_, "the port for copies", decide, std::move(limits), logger_);
    if (!admission) return tl::unexpected(admission.error());
    admission_ = std::move(*admission);
  }
  const Result<std::string> bound = bind_endpoint(socket_, options_.address);
  if (!bound) return tl::unexpected(bound.error());
  endpoint_ = advertised_endpoint(*bound, options_.advertise);
  ipc_path_ = ipc_path(*bound).value_or("");
  return {};
}

CopyPort::~CopyPort() {
  if (thread_.joinable()) {
    stopping_ = true;
    wake_.notify();
    thread_.join();
  }
  admission_.reset();
  socket_.set(zmq::sockopt::linger, 0);
  socket_.close();
  context_.close();
  if (!ipc_path_.empty()) ::unlink(ipc_path_.c_str());
}

void CopyPort::admit(const ServerBook& book) {
  const std::lock_guard lock(mutex_);
  keys_.clear();
  for (const ServerEntry& server : book.servers) {
    if (!server.key.empty()) keys_.insert(server.key);
  }
}

bool CopyPort::admits(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return keys_.contains(key);
}

void CopyPort::run() {
  if (!become_background("copy port")) logger_->info("cannot lower the priority of the port for copies");
  while (!stopping_) {
    zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, wake_.fd(), ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, kPollMs);
    if (items[1].revents != 0) wake_.drain();
    const std::uint64_t now = steady_ms();
    noise_.tick(now);
    forget(now);
    zmq::message_t frames[2];
    const int count = items[0].revents == 0 ? 0 : receive_frames(socket_, frames);
    if (count == 0) continue;
    if (admission_) admission_->heard(std::span(frames).subspan(1, 1));
    if (count != 2) {
      noise_.warn("a peer of the port for copies sent a message of " + std::to_string(count) + " frames", now);
      continue;
    }
    if (options_.own && !admits(key_of(frames[1]))) {
      noise_.warn("a peer of the port for copies is no server of this cluster any more", now);
      continue;
    }
    try {
      answer(std::move(frames[0]), frames[1]);
    } catch (const std::exception& e) {  // no memory: the reader asks again
      noise_.warn(std::string("a reader of the port for copies gets no answer: ") + e.what(), now);
    }
  }
}

void CopyPort::forget(std::uint64_t now_ms) {
  std::erase_if(pinned_, [&](const Pinned& it) { return now_ms > it.used_ms + kPinnedMs; });
  while (pinned_.size() > kMaxPinned) pinned_.pop_back();
}

// A reader's snapshot is held until its last question, whatever is committed or dropped meanwhile.
Result<const PinnedSnapshot*> CopyPort::pinned(const WantChunk& want, std::uint64_t now_ms) {
  const WantChunk what{want.job, want.round, want.shard, 0};
  auto found = std::ranges::find(pinned_, what, &Pinned::what);
  if (found == pinned_.end() || want.place == 0) {
    Result<PinnedSnapshot> snapshot = store_.pin(want.job, want.round, want.shard);
    if (!snapshot) return tl::unexpected(snapshot.error());
    if (found != pinned_.end()) pinned_.erase(found);
    pinned_.push_front({what, std::move(*snapshot), 0});
  } else {
    pinned_.splice(pinned_.begin(), pinned_, found);
  }
  pinned_.front().used_ms = now_ms;
  return &pinned_.front().snapshot;
}

void CopyPort::answer(zmq::message_t from, const zmq::message_t& question) {
  const std::uint64_t now = steady_ms();
  const Result<ControlMessage> message = decode_control(bytes_of(question));
  const auto* want = message ? std::get_if<WantChunk>(&*message) : nullptr;
  if (!want) return noise_.warn("a peer of the port for copies asks for no chunk", now);
  CopiedChunk head;
  head.want = *want;
  std::vector<zmq::message_t> values;
  const auto read = [&]() -> Status {
    const Result<const PinnedSnapshot*> snapshot = pinned(*want, now);
    if (!snapshot) return tl::unexpected(snapshot.error());
    const SnapshotInfo& info = (*snapshot)->info;
    if (want->place >= (*snapshot)->chunks.size()) {
      return fail(ErrorCode::kInvalidArgument,
                  "the snapshot has " + std::to_string(info.chunks) + " chunks, and no " + std::to_string(want->place));
    }
    head.job_name = info.job_name;
    head.layout_hash = info.layout_hash;
    head.optimizer = info.optimizer;
    head.chunks = info.chunks;
    return (*snapshot)->read_one(want->place, [&](const StoredChunk& chunk) -> Status {
      head.chunk = chunk.chunk;
      for (const StoredEntry& entry : chunk.entries) {
        const auto key = std::as_bytes(std::span(entry.key));
        head.keys.emplace_back(key.begin(), key.end());
        values.emplace_back(entry.value.data(), entry.value.size());
      }
      return {};
    });
  };
  if (const Status there = read(); !there) {
    head.ok = false;
    head.code = there.error().code;
    head.message = there.error().message;
    head.keys.clear();
    values.clear();
  }
  const auto bytes = encode_control(head);
  zmq::message_t first(bytes.data(), bytes.size());
  // A reader that takes no more, or is gone, asks again.
  if (!send_now(socket_, from, true) || !send_now(socket_, first, !values.empty())) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!send_now(socket_, values[i], i + 1 < values.size())) return;
  }
  // The last one: what the reader needs no more is not held for it.
  if (head.ok && want->place + 1 == head.chunks) {
    std::erase_if(pinned_, [&](const Pinned& it) {
      return it.what == WantChunk{want->job, want->round, want->shard, 0};
    });
  }
}

}  // namespace tributary
