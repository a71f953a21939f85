#include "worker/allreduce/gloo_ring.h"

#include <gloo/allreduce.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/attr.h>
#include <gloo/transport/tcp/device.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "common/base/assert.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

// Gloo adds it to a clock: not too large.
constexpr milliseconds kForever = std::chrono::hours(100);
constexpr std::uint64_t kPassSlot = 1, kGoodbyeSlot = 2;  // Gloo's own collectives have a prefix in the high bits
constexpr std::size_t kMaxAddress = 192;

struct Aborted {};  // thrown through Gloo's ring by the buffers it waits on

// Waits of a collective: see GlooRing.
struct RingPatience {
  milliseconds others = kForever;
  milliseconds network{0};
};

class RingBuffer;

// Stands between Gloo's collective and its TCP transport: hands out buffers that can be woken.
class RingTransport final : public gloo::transport::Context {
 public:
  RingTransport(std::shared_ptr<gloo::transport::Context> inner, RingPatience patience)
      : gloo::transport::Context(inner->rank, inner->size), patience_(patience), inner_(std::move(inner)) {}

  std::unique_ptr<gloo::transport::Pair>& getPair(int member) override { return inner_->getPair(member); }
  std::unique_ptr<gloo::transport::Pair>& createPair(int member) override { return inner_->createPair(member); }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data, std::size_t bytes) override;

  void abort();
  void check() const {
    if (aborted_.load(std::memory_order_acquire)) throw Aborted();
  }
  const RingPatience& patience() const { return patience_; }
  gloo::transport::Context& inner() { return *inner_; }
  void add(RingBuffer* buffer);
  void remove(RingBuffer* buffer);

 private:
  const RingPatience patience_;
  const std::shared_ptr<gloo::transport::Context> inner_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;  // guards live_
  std::vector<RingBuffer*> live_;
};

// One all-reduce: which parts of the buffer hold this member's share already. Gloo's ring cuts the buffer into
// segments, the same ones all the time; it sends a segment, or adds what came to it, or receives it whole.
class OwnShare {
 public:
  OwnShare(float* values, RingSource& source, std::vector<std::size_t>& scratch)
      : values_(values), source_(source), there_(scratch) {
    there_.clear();
  }
  void sending(std::size_t offset, std::size_t bytes) {
    if (!arrives(offset)) source_.fill(offset / sizeof(float), bytes / sizeof(float), values_ + offset / sizeof(float));
  }
  void receiving(std::size_t offset) { arrives(offset); }
  void add(float* out, const float* other, std::size_t count) {
    const auto first = static_cast<std::size_t>(out - values_);
    if (!arrives(first * sizeof(float))) return source_.fill_and_add(first, count, other, out);
    const float* inputs[] = {out, other};
    kernels::tree_sum(inputs, count, out);
  }

 private:
  // Was it there?
  bool arrives(std::size_t offset) {
    if (std::ranges::find(there_, offset) != there_.end()) return true;
    there_.push_back(offset);
    return false;
  }

  float* const values_;
  RingSource& source_;
  std::vector<std::size_t>& there_;  // offsets of segments, in bytes
};

class RingBuffer final : public gloo::transport::UnboundBuffer {
 public:
  RingBuffer(RingTransport& transport, void* data, std::size_t bytes)
      : gloo::transport::UnboundBuffer(data, bytes),
        transport_(transport),
        inner_(transport.inner().createUnboundBuffer(data, bytes)) {
    transport_.add(this);
  }
  ~RingBuffer() override { transport_.remove(this); }
  RingBuffer(const RingBuffer&) = delete;
  RingBuffer& operator=(const RingBuffer&) = delete;

  // The buffer of an all-reduce. Gloo's ring receives into it only when everybody has contributed (before, it receives
  // into a scratch buffer): from then on only the network is waited for.
  void result_of(OwnShare& share) { share_ = &share; }
  void limit(milliseconds timeout) { limit_ = timeout; }

  bool waitRecv(int* rank, milliseconds) override {
    return wait([&](milliseconds timeout) { return inner_->waitRecv(rank, timeout); });
  }
  bool waitSend(int* rank, milliseconds) override {
    return wait([&](milliseconds timeout) { return inner_->waitSend(rank, timeout); });
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    transport_.check();
    if (share_ != nullptr) share_->sending(offset, bytes);
    inner_->send(rank, slot, offset, bytes);
  }
  void recv(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    transport_.check();
    if (share_ != nullptr) {
      share_->receiving(offset);
      limit_ = transport_.patience().network;
    }
    inner_->recv(rank, slot, offset, bytes);
  }
  void recv(std::vector<int> ranks, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    transport_.check();
    inner_->recv(std::move(ranks), slot, offset, bytes);
  }

 private:
  template <class Wait>
  bool wait(Wait run) {
    transport_.check();
    if (!run(limit_.value_or(transport_.patience().others))) throw Aborted();
    transport_.check();
    return true;
  }

  RingTransport& transport_;
  const std::unique_ptr<gloo::transport::UnboundBuffer> inner_;
  std::optional<milliseconds> limit_;
  OwnShare* share_ = nullptr;
};

std::unique_ptr<gloo::transport::UnboundBuffer> RingTransport::createUnboundBuffer(void* data, std::size_t bytes) {
  return std::make_unique<RingBuffer>(*this, data, bytes);
}

void RingTransport::add(RingBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  live_.push_back(buffer);
}

void RingTransport::remove(RingBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  std::erase(live_, buffer);
}

// A thread that begins to wait after the flag is set sees it; threads that wait already are woken.
void RingTransport::abort() {
  aborted_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  for (RingBuffer* buffer : live_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

// Gloo's context, connected by us.
class RingContext final : public gloo::Context {
 public:
  RingContext(int member, int members, std::shared_ptr<gloo::transport::Device> device,
              std::shared_ptr<gloo::transport::Context> transport)
      : gloo::Context(member, members) {
    device_ = std::move(device);
    transportContext_ = std::move(transport);
  }
};

// Addresses of Gloo are a fixed number of bytes, most of them zeros.
std::vector<std::byte> packed(const std::vector<char>& address) {
  std::size_t used = address.size();
  while (used > 0 && address[used - 1] == 0) --used;
  const auto bytes = std::as_bytes(std::span(address.data(), used));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

struct GlooDevice::Impl {
  std::shared_ptr<gloo::transport::Device> device;
};

GlooDevice::GlooDevice(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooDevice::~GlooDevice() = default;

// Looks the name up here, because Gloo's own look-up continues with garbage if there is no such name.
Result<std::shared_ptr<GlooDevice>> GlooDevice::create(const std::string& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.c_str(), nullptr, &hints, &found); error != 0) {
    return fail(ErrorCode::kConfig, "cannot use address '" + address + "' for all-reduce: " + ::gai_strerror(error) +
                                        "; set [worker] address in worker.toml to an address of this machine that "
                                        "the other workers reach");
  }
  char number[NI_MAXHOST] = {};
  const int named = ::getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof number, nullptr, 0, NI_NUMERICHOST);
  const int family = found->ai_family;
  // Gloo binds to it too, but loses memory if that fails.
  const int probe = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool ours = probe >= 0 && ::bind(probe, found->ai_addr, found->ai_addrlen) == 0;
  const int error = errno;
  if (probe >= 0) ::close(probe);
  ::freeaddrinfo(found);
  if (named != 0) return fail(ErrorCode::kConfig, "cannot use address '" + address + "': " + ::gai_strerror(named));
  if (!ours) {
    return fail(ErrorCode::kConfig, "cannot use address '" + address +
                                        "' for all-reduce: " + std::generic_category().message(error) +
                                        "; set [worker] address in worker.toml to an address of this machine");
  }
  try {
    gloo::transport::tcp::attr attr(number);
    attr.ai_family = family;
    auto impl = std::make_unique<Impl>();
    impl->device = gloo::transport::tcp::CreateDevice(attr);
    return std::shared_ptr<GlooDevice>(new GlooDevice(std::move(impl)));
  } catch (const std::exception& e) {
    return fail(ErrorCode::kConfig, "cannot use address '" + address + "' for all-reduce: " + e.what() +
                                        "; set [worker] address in worker.toml to an address of this machine");
  }
}

struct GlooRing::Impl {
  std::shared_ptr<GlooDevice> device;
  std::shared_ptr<gloo::transport::Context> tcp;
  std::shared_ptr<RingTransport> transport;
  std::shared_ptr<RingContext> context;
  std::atomic<bool> aborted{false}, connected{false}, roused{false};
  // Read before any member connects: a Gloo pair that connects has another address from then on, useless to others.
  std::vector<std::byte> address_for_previous, address_for_next;
  // Receive buffers of the neighbours' goodbyes, from expect_goodbyes() on.
  char words[2] = {};
  std::unique_ptr<RingBuffer> from_previous, from_next;
  bool heard_previous = false;
  std::vector<std::size_t> segments;  // scratch of OwnShare
};

GlooRing::GlooRing(Options options, std::unique_ptr<Impl> impl) : options_(options), impl_(std::move(impl)) {}
GlooRing::~GlooRing() = default;

Result<std::unique_ptr<GlooRing>> GlooRing::create(std::shared_ptr<GlooDevice> device, Options options) {
  TRIB_ASSERT(options.size >= 1 && options.rank < options.size);
  std::unique_ptr<GlooRing> ring(new GlooRing(options, std::make_unique<Impl>()));
  if (options.size == 1) return ring;
  try {
    Impl& parts = *ring->impl_;
    parts.device = std::move(device);
    auto& gloo_device = parts.device->impl_->device;
    const int rank = static_cast<int>(options.rank), size = static_cast<int>(options.size);
    parts.tcp = gloo_device->createContext(rank, size);
    // Gloo allows a connection five times as long.
    parts.tcp->setTimeout(std::max(milliseconds(1), options.timeout / 5));
    parts.tcp->createPair(static_cast<int>(ring->previous()));
    if (ring->next() != ring->previous()) parts.tcp->createPair(static_cast<int>(ring->next()));
    parts.address_for_previous = packed(parts.tcp->getPair(static_cast<int>(ring->previous()))->address().bytes());
    parts.address_for_next = packed(parts.tcp->getPair(static_cast<int>(ring->next()))->address().bytes());
    RingPatience patience{options.patience.count() == 0 ? kForever : options.patience, options.timeout};
    parts.transport = std::make_shared<RingTransport>(parts.tcp, patience);
    parts.context = std::make_shared<RingContext>(rank, size, gloo_device, parts.transport);
    return ring;
  } catch (const std::exception& e) {
    return fail(ErrorCode::kUnavailable, std::string("cannot listen for the other nodes: ") + e.what());
  }
}

std::vector<std::byte> GlooRing::address_for_previous() const {
  return impl_->address_for_previous;
}
std::vector<std::byte> GlooRing::address_for_next() const {
  return impl_->address_for_next;
}

// Lets no exception of Gloo's pass: `run` may throw anything.
template <class Run>
Status GlooRing::guarded(const char* what, Run run) {
  std::string reason;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    run();
    if (!impl_->aborted.load(std::memory_order_acquire)) return {};
  } catch (const Aborted&) {
  } catch (const std::exception& e) {
    reason = e.what();
    // Gloo has one type for all of them, and no other distinction.
    if (reason.find("Timed out") != std::string::npos || reason.find("imeout") != std::string::npos) {
      code = ErrorCode::kTimeout;
    }
  }
  if (impl_->aborted.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kStopped, std::string(what) + " was given up");
  }
  return fail(code, std::string(what) + " between members " + std::to_string(previous()) + ", " +
                        std::to_string(options_.rank) + " and " + std::to_string(next()) + " of a ring of " +
                        std::to_string(options_.size) + ": " + reason);
}

Status GlooRing::connect(std::span<const std::byte> previous_address, std::span<const std::byte> next_address) {
  if (options_.size == 1) return {};
  return guarded("connecting", [&] {
    const auto one = [&](std::uint32_t member, std::span<const std::byte> address) {
      auto& pair = impl_->tcp->getPair(static_cast<int>(member));
      std::vector<char> bytes = pair->address().bytes();
      if (address.size() > std::min(bytes.size(), kMaxAddress)) throw std::runtime_error("an address is too long");
      std::ranges::fill(bytes, 0);
      std::ranges::copy(address, reinterpret_cast<std::byte*>(bytes.data()));
      if (impl_->aborted.load(std::memory_order_acquire)) throw Aborted();
      pair->connect(bytes);
    };
    // Which side of a pair listens is up to their port numbers, and either side blocks until the pair is connected. So
    // the ring closes from member 0 on; if all began with the same side, all could wait for each other.
    if (options_.rank == 0) one(next(), next_address);
    if (options_.rank != 0 || next() != previous()) one(previous(), previous_address);
    if (options_.rank != 0 && next() != previous()) one(next(), next_address);
    impl_->connected.store(true, std::memory_order_release);
  });
}

Status GlooRing::allreduce(float* values, std::size_t count, RingSource& source) {
  if (options_.size == 1) {
    source.fill(0, count, values);
    return {};
  }
  return guarded("summing", [&] {
    OwnShare share(values, source, impl_->segments);
    auto out = std::make_unique<RingBuffer>(*impl_->transport, values, count * sizeof(float));
    out->result_of(share);
    gloo::AllreduceOptions call(impl_->context);
    call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    call.setOutput<float>(std::move(out));
    call.setReduceFunction([&share](void* sum, const void*, const void* other, std::size_t n) {
      share.add(static_cast<float*>(sum), static_cast<const float*>(other), n);
    });
    gloo::allreduce(call);
  });
}

Status GlooRing::send_next(const void* data, std::size_t bytes) {
  if (options_.size == 1) return {};
  return guarded("passing on", [&] {
    // Gloo's parameter is not const, but Gloo only reads.
    RingBuffer buffer(*impl_->transport, const_cast<void*>(data), bytes);
    buffer.send(static_cast<int>(next()), kPassSlot, 0, bytes);
    buffer.waitSend(nullptr, {});
  });
}

Status GlooRing::receive_previous(void* data, std::size_t bytes) {
  if (options_.size == 1) return {};
  return guarded("receiving", [&] {
    RingBuffer buffer(*impl_->transport, data, bytes);
    buffer.recv(static_cast<int>(previous()), kPassSlot, 0, bytes);
    buffer.waitRecv(nullptr, {});
  });
}

// Passes a word twice around: when it comes back to member 0 all have come, and the second turn announces that.
Status GlooRing::meet(milliseconds patience) {
  if (options_.size == 1) return {};
  return guarded("meeting", [&] {
    for (int turn = 0; turn < 2; ++turn) {
      char came = 0, goes = 0;
      RingBuffer from(*impl_->transport, &came, 1), to(*impl_->transport, &goes, 1);
      from.limit(patience);
      to.limit(patience);
      from.recv(static_cast<int>(previous()), kPassSlot, 0, 1);
      if (options_.rank != 0) from.waitRecv(nullptr, {});
      to.send(static_cast<int>(next()), kPassSlot, 0, 1);
      to.waitSend(nullptr, {});
      if (options_.rank == 0) from.waitRecv(nullptr, {});
    }
  });
}

Status GlooRing::expect_goodbyes() {
  if (options_.size == 1) return {};
  return guarded("watching", [&] {
    const auto expect = [&](std::unique_ptr<RingBuffer>& buffer, std::uint32_t from, char& word) {
      buffer = std::make_unique<RingBuffer>(*impl_->transport, &word, 1);
      buffer->recv(static_cast<int>(from), kGoodbyeSlot, 0, 1);
    };
    expect(impl_->from_previous, previous(), impl_->words[0]);
    if (next() != previous()) expect(impl_->from_next, next(), impl_->words[1]);
  });
}

Status GlooRing::watch() {
  if (options_.size == 1 || impl_->heard_previous) return {};
  return guarded("watching", [&] {
    try {
      impl_->from_previous->waitRecv(nullptr, {});
      impl_->heard_previous = true;
    } catch (const Aborted&) {
      if (!impl_->roused.load(std::memory_order_acquire)) throw;
    }
  });
}

void GlooRing::rouse() {
  if (options_.size == 1 || impl_->roused.exchange(true, std::memory_order_acq_rel)) return;
  if (impl_->from_previous) impl_->from_previous->abortWaitRecv();
}

Status GlooRing::say_goodbye(milliseconds patience) {
  if (options_.size == 1) return {};
  return guarded("saying goodbye", [&] {
    char word = 0;
    RingBuffer to_previous(*impl_->transport, &word, 1), to_next(*impl_->transport, &word, 1);
    const bool two = next() != previous();
    to_previous.send(static_cast<int>(previous()), kGoodbyeSlot, 0, 1);
    if (two) to_next.send(static_cast<int>(next()), kGoodbyeSlot, 0, 1);
    const auto wait = [&](RingBuffer& buffer, bool (RingBuffer::*how)(int*, milliseconds)) {
      buffer.limit(patience);
      (buffer.*how)(nullptr, {});
    };
    if (!impl_->heard_previous) wait(*impl_->from_previous, &RingBuffer::waitRecv);
    wait(to_previous, &RingBuffer::waitSend);
    if (!two) return;
    wait(*impl_->from_next, &RingBuffer::waitRecv);
    wait(to_next, &RingBuffer::waitSend);
  });
}

// Data on its way to the neighbours is not lost: only the destructor closes established connections.
void GlooRing::abort() {
  if (impl_->aborted.exchange(true, std::memory_order_acq_rel)) return;
  if (options_.size == 1) return;
  impl_->transport->abort();
  if (impl_->connected.load(std::memory_order_acquire)) return;
  try {
    impl_->tcp->getPair(static_cast<int>(previous()))->close();
    if (next() != previous()) impl_->tcp->getPair(static_cast<int>(next()))->close();
  } catch (const std::exception&) {
    // A pair that cannot be closed has no waiting thread either.
  }
}

}  // namespace tributary
