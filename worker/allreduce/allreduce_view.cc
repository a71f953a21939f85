// How a view of an all-reduce job begins and ends on this node.
#include <algorithm>
#include <cstring>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "worker/allreduce/allreduce_job.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kValuesMagic = 0x76616c7554524942ull;

// What node 0 sends along the control ring before the values.
struct ValuesHeader {
  std::uint64_t magic = kValuesMagic;
  std::uint64_t layout_hash = 0;
  std::uint64_t round = 0;
  std::uint64_t slots = 0;  // state arrays that follow the parameters; 0 in a fresh job, where all nodes know them
};

// Addresses of a node's members (and NCCL's keys): for each a byte of length, then as many bytes.
void append(std::vector<std::byte>& out, std::span<const std::byte> address) {
  TRIB_ASSERT(address.size() < 256);
  out.push_back(static_cast<std::byte>(address.size()));
  out.insert(out.end(), address.begin(), address.end());
}

}  // namespace

// ---- The lane's thread ----

void AllreduceJob::initial_values() {
  if (!job_->spec().init()) return;
  {
    const std::lock_guard lock(mutex_);
    initial_ = true;
  }
  changed_.notify_all();
}

void AllreduceJob::peer_address(const PeerAddress& address) {
  if (address.key != (on_devices() ? kDevicesKey : kHostKey) || address.node.value >= view_.nodes) {
    lane_.logger()->warn("job '{}': dropped an address that no node of this view can have (key '{}', node {})",
                         view_.name(), address.key, address.node.value);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    published_.try_emplace(address.node.value, address.value);  // a node says it once
  }
  changed_.notify_all();
}

void AllreduceJob::close(bool keep) {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    keep_ = keep && begun_ && !failed_;
    if (keep && !begun_ && !failed_) left_ = what_is_left({}, view_.start);  // as it began
    for (const auto& member : members_) member->ring->abort();
    if (exchange_ && !keep_) exchange_->give_up();
    // A view that ends in good order needs the control ring for its last words.
    if (control_ && keep_) control_->rouse();
    if (control_ && !keep_) control_->abort();
    if (!keep_) kept_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void AllreduceJob::cut() {
  close(false);
  const std::lock_guard lock(mutex_);
  cut_ = true;
  if (control_) control_->abort();
  if (exchange_) exchange_->give_up();
}

// ---- The conductor ----

void AllreduceJob::conduct() {
  bool began = false;
  const Status conducted = contained([&]() -> Status {
    if (Status status = begin(); status) {
      began = true;
      if (Status watched = control_->watch(); !watched)
        fail_call("the connection to the node before it", watched.error());
    } else if (status.error().code == ErrorCode::kTimeout || status.error().code == ErrorCode::kUnavailable) {
      fail_call("at the beginning of the view", status.error());
    } else if (status.error().code != ErrorCode::kStopped) {
      fail_job(LaneFailure::Kind::kRefused, {status.error().code, place() + ": " + status.error().message});
    }
    return {};
  });
  if (!conducted) {
    fail_job(LaneFailure::Kind::kRefused, {conducted.error().code, place() + ": " + conducted.error().message});
  }
  end(began);
  kept_.store(true, std::memory_order_release);
  ended_.store(true, std::memory_order_release);
  lane_.rouse();
}

Status AllreduceJob::begin() {
  const NodeJobSpec& spec = job_->spec();
  if (ring_size() > kMaxMembers) {
    return fail(ErrorCode::kLimit, "a ring of " + std::to_string(ring_size()) + " members is over the limit of " +
                                       std::to_string(kMaxMembers) + "; use algorithm = \"hierarchical\"");
  }
  auto state = ReplicaState::create(view_.layout, view_.plan->config, job_->parameters());
  if (!state) return tl::unexpected(state.error());
  state_ = std::move(*state);
  if (spec.node.value == 0 && !lane_.options().store_path.empty()) {
    checkpointer_ = std::make_unique<Checkpointer>(lane_.options().store_path, view_.plan->config, view_.layout,
                                                   view_.start, *state_, lane_.logger());
  }
  if (Status opened = open_rings(); !opened) return opened;
  if (Status connected = on_devices() ? connect_devices() : wait_for_members(); !connected) return connected;
  if (spec.node.value == 0) {
    if (Status values = first_values(); !values) return values;
  }
  if (Status passed = pass_values_on(); !passed) return passed;
  if (exchange_) {
    if (Status loaded = exchange_->load(*state_); !loaded) return loaded;
  }
  if (Status ready = control_->expect_goodbyes(); !ready) return ready;
  if (exchange_) exchange_->start();
  publish_start();
  return {};
}

// Listens, publishes where, and starts the members, which connect to theirs while the control ring is connected here.
Status AllreduceJob::open_rings() {
  const NodeJobSpec& spec = job_->spec();
  const std::uint32_t here = members_here();
  std::shared_ptr<GlooDevice> device;
  if (view_.nodes > 1 || (ring_size() > 1 && !on_devices())) {
    auto created = GlooDevice::create(lane_.options().address);
    if (!created) return tl::unexpected(created.error());
    device = std::move(*created);
  }
  GlooRing::Options options;
  options.timeout = milliseconds(lane_.options().collective_timeout_ms);
  options.rank = spec.node.value;
  options.size = view_.nodes;
  auto control = GlooRing::create(device, options);
  if (!control) return tl::unexpected(control.error());
  options.size = ring_size();
  std::vector<std::unique_ptr<Member>> members;
  const std::uint64_t staging = staging_bytes(*view_.layout, 1, 1) / sizeof(float);
  for (std::uint16_t stream = 0; stream < streams_ && !on_devices(); ++stream) {
    for (std::uint32_t index = 0; index < here; ++index) {
      options.rank = spec.node.value * here + index;
      auto ring = GlooRing::create(device, options);
      if (!ring) return tl::unexpected(ring.error());
      auto member = std::make_unique<Member>();
      member->stream = stream;
      member->index = index;
      member->ring = std::move(*ring);
      member->staging = FloatArray(staging, kernels::kMaxSlots + 1);
      members.push_back(std::move(member));
    }
  }
  PeerAddress mine;
  mine.job = view_.job;
  mine.view = view_.view;
  mine.node = spec.node;
  mine.key = on_devices() ? kDevicesKey : kHostKey;
  const auto add = [&](const GlooRing& ring) {
    append(mine.value, ring.address_for_previous());
    append(mine.value, ring.address_for_next());
  };
  add(**control);
  for (const auto& member : members) add(*member->ring);
  if (on_devices()) {
    if (Status opened = open_devices(mine); !opened) return opened;
  }
  if (mine.value.size() > kMaxPeerAddressBytes) {
    return fail(ErrorCode::kLimit, "the addresses of " + std::to_string(here) + " local ranks take " +
                                       std::to_string(mine.value.size()) + " bytes, the limit is " +
                                       std::to_string(kMaxPeerAddressBytes) + "; use algorithm = \"hierarchical\"");
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return fail(ErrorCode::kStopped, "the view is over");
    control_ = std::move(*control);
    members_ = std::move(members);
    published_[spec.node.value] = mine.value;
    for (const auto& member : members_) {
      member->thread = start_thread("member", lane_.logger(), [this, &m = *member] {
        const Status ran = contained([&]() -> Status { return run_member(m), Status{}; });
        if (!ran) fail_call("a member of a ring", ran.error());
      });
    }
  }
  if (view_.nodes > 1) lane_.port().publish(mine);
  auto before = addresses_of(control_->previous());
  if (!before) return tl::unexpected(before.error());
  auto after = addresses_of(control_->next());
  if (!after) return tl::unexpected(after.error());
  return control_->connect((*before)[1], (*after)[0]);
}

// The engine, and on node 0 the keys of its communicators, which are published behind the addresses.
Status AllreduceJob::open_devices(PeerAddress& mine) {
  const std::shared_ptr<AllreduceDevices>& devices = job_->spec().allreduce_devices;
  auto exchange = DeviceExchange::create(devices, view_.plan->config, view_.start, *this, lane_.logger());
  if (!exchange) return tl::unexpected(exchange.error());
  const AllreducePlan& plan = devices->plan();
  for (std::uint32_t i = 0; mine.node.value == 0 && plan.between_nodes() && i < plan.communicators(); ++i) {
    const Result<CommKey> key = devices->api().make_comm_key();
    if (!key) return tl::unexpected(key.error());
    append(mine.value, key->bytes);
  }
  const std::lock_guard lock(mutex_);
  if (closing_) return fail(ErrorCode::kStopped, "the view is over");
  exchange_ = std::move(*exchange);
  return {};
}

Status AllreduceJob::connect_devices() {
  auto published = addresses_of(0);
  if (!published) return tl::unexpected(published.error());
  std::vector<CommKey> keys(published->size() - 2);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::vector<std::byte>& bytes = (*published)[2 + i];
    if (bytes.size() != keys[i].bytes.size()) return fail(ErrorCode::kMalformed, "node 0 said a key that is none");
    std::ranges::copy(bytes, keys[i].bytes.begin());
  }
  return exchange_->connect(keys);
}

// Waits for what `node` published: of the control ring and then of each member (as in members_) the address for the
// ring's previous member and for its next.
Result<AllreduceJob::Addresses> AllreduceJob::addresses_of(std::uint32_t node) {
  std::vector<std::byte> bytes;
  {
    std::unique_lock lock(mutex_);
    const bool there = changed_.wait_for(lock, milliseconds(lane_.options().collective_timeout_ms),
                                         [&] { return published_.contains(node) || failed_ || closing_; });
    if (failed_ || closing_) return fail(ErrorCode::kStopped, "the view is over");
    if (!there) {
      return fail(ErrorCode::kTimeout, "node " + std::to_string(node) + " has not said its address for " +
                                           std::to_string(lane_.options().collective_timeout_ms) +
                                           " ms; is its worker daemon alive?");
    }
    bytes = published_.at(node);
  }
  Addresses addresses;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = std::to_integer<std::size_t>(bytes[at++]);
    if (length > bytes.size() - at) break;
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    addresses.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    at += length;
  }
  std::size_t expected = 2 * (1 + std::size_t{streams_} * members_here());
  if (on_devices()) {
    const AllreducePlan& plan = job_->spec().allreduce_devices->plan();
    expected = 2 + (node == 0 && plan.between_nodes() ? plan.communicators() : 0);
  }
  if (addresses.size() != expected) {
    return fail(ErrorCode::kMalformed, "node " + std::to_string(node) + " said " + std::to_string(addresses.size()) +
                                           " addresses instead of " + std::to_string(expected) +
                                           "; do all workers have the same release and configuration?");
  }
  return addresses;
}

Status AllreduceJob::connect_member(Member& member) {
  const std::uint32_t here = members_here();
  const auto address = [&](std::uint32_t rank, std::size_t which) -> Result<std::vector<std::byte>> {
    auto all = addresses_of(rank / here);
    if (!all) return tl::unexpected(all.error());
    return (*all)[2 * (1 + std::size_t{member.stream} * here + rank % here) + which];
  };
  auto before = address(member.ring->previous(), 1);
  auto after = before ? address(member.ring->next(), 0) : before;
  Status connected = after ? member.ring->connect(*before, *after) : tl::unexpected(after.error());
  if (!connected) fail_call("connecting stream " + std::to_string(member.stream), connected.error());
  return connected;
}

Status AllreduceJob::wait_for_members() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return connected_ == members_.size() || failed_ || closing_; });
  return failed_ || closing_ ? fail(ErrorCode::kStopped, "the view is over") : Status();
}

// Node 0: the values that the view begins with are in the node region and the state.
Status AllreduceJob::first_values() {
  const NodeJobSpec& spec = job_->spec();
  if (!spec.init()) {
    if (lane_.options().store_path.empty()) {
      return fail(ErrorCode::kStore, "the job is to go on from round " + std::to_string(view_.start.value) +
                                         ", but this worker keeps no checkpoints; set [store] path in worker.toml");
    }
    return ReplicaCheckpoints(lane_.options().store_path, view_.plan->config, *view_.layout)
        .read(view_.start, {job_->parameters(), state_->slots(), state_->steps()});
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return initial_ || failed_ || closing_; });
  return failed_ || closing_ ? fail(ErrorCode::kStopped, "the view is over") : Status();
}

// From node 0 along the ring to the last node, chunk by chunk, so that all links are busy at a time.
Status AllreduceJob::pass_values_on() {
  const NodeJobSpec& spec = job_->spec();
  const Layout& layout = *view_.layout;
  const bool first = spec.node.value == 0, last = spec.node.value + 1 == view_.nodes;
  const auto pass = [&](void* data, std::size_t bytes) -> Status {
    if (!first) {
      if (Status got = control_->receive_previous(data, bytes); !got) return got;
    }
    return last ? Status() : control_->send_next(data, bytes);
  };
  ValuesHeader header;
  header.layout_hash = layout.hash();
  header.round = view_.start.value;
  header.slots = spec.init() ? 0 : state_->slots().size();
  const ValuesHeader own = header;
  if (Status passed = pass(&header, sizeof header); !passed) return passed;
  if (header.magic != own.magic || header.layout_hash != own.layout_hash || header.round != own.round ||
      (header.slots != 0 && header.slots != state_->slots().size())) {
    return fail(ErrorCode::kConfigMismatch,
                "node 0 begins the view with other tensors, another optimizer or another round than this node expects; "
                "use the same release and job file everywhere");
  }
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    if (Status passed = pass(job_->parameters() + range.begin, range.elements * sizeof(float)); !passed) return passed;
    if (header.slots == 0) continue;
    for (float* slot : state_->slots()) {
      if (Status passed = pass(slot + range.begin, range.elements * sizeof(float)); !passed) return passed;
    }
    if (Status passed = pass(&state_->steps()[c], sizeof(std::uint64_t)); !passed) return passed;
  }
  return {};
}

void AllreduceJob::publish_start() {
  const std::size_t chunks = job_->layout().chunks();
  {
    const std::lock_guard lock(mutex_);
    for (std::uint32_t c = 0; c < chunks; ++c) gather_.answered(ChunkIndex(c));
    begun_ = true;
  }
  changed_.notify_all();
  for (std::size_t c = 0; c < chunks; ++c) {
    job_->chunk_words()[c].version_plus_one.store(view_.start.value + 1, std::memory_order_release);
  }
  job_->announce();
}

void AllreduceJob::end(bool began) {
  bool keep = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_; });
    keep = keep_ && began;
  }
  Status saved;
  for (const auto& member : members_) {
    if (member->thread.joinable()) member->thread.join();
  }
  if (exchange_) {
    // What NCCL still sends for others, nobody can see: so all must have come here before anything is aborted.
    if (const Status met = keep ? control_->meet(milliseconds(AllreduceLane::kKeepPatienceMs)) : Status(); !met) {
      lane_.logger()->info("job '{}': {} does not wait for the others any more: {}", view_.name(), place(),
                           met.error().message);
    }
    exchange_->stop();
    if (keep && checkpointer_) {
      saved = exchange_->save(*state_);
    }
  }
  if (keep) {
    // Only when both neighbours have all they need of this node may its connections close.
    const Status parted = control_->say_goodbye(milliseconds(AllreduceLane::kKeepPatienceMs));
    if (!parted && parted.error().code != ErrorCode::kStopped) {
      lane_.logger()->info("job '{}': {} leaves without the others' goodbye: {}", view_.name(), place(),
                           parted.error().message);
    }
    if (saved && checkpointer_) saved = last_checkpoint();
    left_ = what_is_left(saved, checkpointer_ ? std::max(checkpointer_->written(), view_.start) : view_.start);
  }
  checkpointer_.reset();  // waits for what is being written
  std::vector<std::unique_ptr<Member>> members;
  std::unique_ptr<GlooRing> control;
  std::unique_ptr<DeviceExchange> exchange;
  const std::lock_guard lock(mutex_);
  members.swap(members_);
  exchange.swap(exchange_);
  control.swap(control_);
}

Status AllreduceJob::last_checkpoint() {
  const Version reached = job_->min_version();
  if (reached != job_->max_version()) return fail(ErrorCode::kStore, "its buckets are not all at one round");
  return reached.value > view_.start.value ? checkpointer_->finish(Round(reached.value)) : Status();
}

SnapshotDone AllreduceJob::left() const {
  return left_ ? *left_ : what_is_left(fail(ErrorCode::kUnavailable, "the view failed before"), view_.start);
}

// saved: the state that the view ended with, or why not. newest: the checkpoint that there is if it is not.
SnapshotDone AllreduceJob::what_is_left(const Status& saved, Round newest) const {
  if (lane_.options().store_path.empty()) return {view_.job, view_.view, Round(), true, 0, {}};
  const Round reached = std::max(Round(job_->min_version().value), view_.start);
  if (saved) return {view_.job, view_.view, reached, true, 0, {}};
  std::string text = "node 0's checkpoint of round " + std::to_string(reached.value) + ": " + saved.error().message;
  text += newest.value != 0 ? "; the newest one is that of round " + std::to_string(newest.value)
                            : "; there is no other, so the job begins anew";
  return {view_.job, view_.view, newest, false, 0, std::move(text)};
}

}  // namespace tributary
