#include "worker/allreduce/allreduce_job.h"

#include <algorithm>

#include "common/daemon/daemon_thread.h"
#include "worker/allreduce/device_exchange.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using Phase = ViewProgress::Phase;

constexpr std::uint64_t kValuesMagic = 0x76616c7554524942ull;

// Header that precedes the values on the control ring.
struct ValuesHeader {
  std::uint64_t magic = kValuesMagic;
  std::uint64_t layout_hash = 0;
  std::uint64_t round = 0;
  std::uint64_t slots = 0;  // state arrays that follow the parameters; 0 in a fresh job, where all nodes know them
};

}  // namespace

AllreduceJob::AllreduceJob(std::shared_ptr<NodeJob> job, const AllreduceMeans& means)
    : job_(std::move(job)),
      view_(job_->view()),
      means_(means),
      timeout_(means.config.collective_timeout_ms),
      address_key_(job_->spec().allreduce_devices ? kDevicesKey : kHostKey),
      progress_(job_, means_.lane, timeout_),
      buckets_(*job_, RingShape::of(job_->spec()).size, progress_) {
  conductor_ = start_thread("conductor", means_.lane.logger(), [this] { conduct(); });
}

AllreduceJob::~AllreduceJob() {
  cut();
  conductor_.join();
}

// ---- The lane's thread ----

void AllreduceJob::initial_values() {
  if (!job_->spec().init()) return;
  {
    const auto lock = progress_.lock();
    has_initial_ = true;
  }
  progress_.notify();
}

void AllreduceJob::peer_address(const PeerAddress& address) {
  if (address.key != address_key_ || address.node.value >= view_.nodes) {
    means_.lane.logger()->warn("job '{}': dropped an address that no node of this view can have (key '{}', node {})",
                               view_.name(), address.key, address.node.value);
    return;
  }
  progress_.publish(address.node.value, address.value);
}

void AllreduceJob::tick(std::uint64_t now_ms) {
  const auto lock = progress_.lock();
  if (exchange_ && !progress_.over()) exchange_->notice(now_ms);
}

void AllreduceJob::close(bool clean) {
  {
    const auto lock = progress_.lock();
    if (progress_.closed()) return;
    const bool parting = clean && progress_.phase() == Phase::kTraining;
    if (!parting) {
      const bool as_it_began = progress_.phase() == Phase::kBeginning;
      outcome_ =
          outcome_of(as_it_began ? Status() : fail(ErrorCode::kUnavailable, "the view failed before"), view_.start);
    }
    progress_.enter(parting ? Phase::kParting : Phase::kCut);
    if (exchange_) exchange_->close(parting);
    // A clean end of a view needs the control ring for the goodbyes.
    if (control_ && parting) control_->rouse();
    if (control_ && !parting) control_->abort();
    if (!parting) has_outcome_.store(true, std::memory_order_release);
  }
  progress_.notify();
}

void AllreduceJob::cut() {
  close(false);
  const auto lock = progress_.lock();
  if (control_) control_->abort();
  if (exchange_) exchange_->close(false);
}

// ---- The conductor ----

void AllreduceJob::conduct() {
  const Status conducted = contained([&]() -> Status {
    if (const Status begun = begin(); !begun) {
      const ErrorCode code = begun.error().code;
      const bool waited = code == ErrorCode::kTimeout || code == ErrorCode::kUnavailable;
      progress_.failed(waited ? "at the beginning of the view" : "", begun.error());
    } else if (const Status watched = control_->watch(); !watched) {
      progress_.failed("the connection to the node before it", watched.error());
    }
    return {};
  });
  if (!conducted) progress_.failed("", conducted.error());
  end();
  has_outcome_.store(true, std::memory_order_release);
  ended_.store(true, std::memory_order_release);
  means_.lane.rouse();
}

Status AllreduceJob::begin() {
  const NodeJobSpec& spec = job_->spec();
  if (const std::uint32_t members = RingShape::of(spec).size; members > kMaxMembers) {
    return fail(ErrorCode::kLimit, "a ring of " + std::to_string(members) + " members is over the limit of " +
                                       std::to_string(kMaxMembers) + "; use algorithm = \"hierarchical\"");
  }
  state_ = std::make_unique<ReplicaState>(view_.plan, view_.layout, job_->parameters());
  if (keeps_checkpoints(spec.node) && !means_.config.store_path.empty()) {
    checkpointer_ = std::make_unique<Checkpointer>(means_.config.store_path, view_.plan->config, view_.layout,
                                                   view_.start, *state_, means_.lane.logger());
  }
  Status done = open_rings();
  if (done) done = connect();
  if (done && spec.node == spec.values_from) done = first_values();
  if (done) done = pass_values_on();
  if (done) done = exchange_->load(*state_);
  if (done) done = control_->expect_goodbyes();
  if (!done) return done;
  exchange_->start();
  buckets_.start(*exchange_, checkpointer_.get());
  return {};
}

// Listens, publishes the addresses, and connects the control ring while the exchange connects.
Status AllreduceJob::open_rings() {
  const NodeJobSpec& spec = job_->spec();
  std::shared_ptr<GlooDevice> device;
  if (view_.nodes > 1) {
    auto created = GlooDevice::create(means_.config.address);
    if (!created) return tl::unexpected(created.error());
    device = std::move(*created);
  }
  auto control = GlooRing::create(device, {.rank = spec.node.value, .size = view_.nodes, .timeout = timeout_});
  if (!control) return tl::unexpected(control.error());
  auto exchange = make_exchange();
  Addresses mine = {(*control)->address_for_previous(), (*control)->address_for_next()};
  if (Status opened = exchange->open(std::move(device), mine); !opened) return opened;
  // Node 0's keys of NCCL's communicators are for all; rings are made of neighbours.
  const bool for_all = spec.node.value == 0 && spec.allreduce_devices;
  const PeerAddress published{view_.job, view_.view, spec.node, address_key_, encode(mine), for_all};
  if (published.value.size() > kMaxPeerAddressBytes) {
    return fail(ErrorCode::kLimit, "the addresses of " + std::to_string(RingShape::of(spec).here) +
                                       " local ranks take " + std::to_string(published.value.size()) +
                                       " bytes, the limit is " + std::to_string(kMaxPeerAddressBytes) +
                                       "; use algorithm = \"hierarchical\"");
  }
  {
    const auto lock = progress_.lock();
    if (progress_.closed()) return ViewProgress::stopped();
    control_ = std::move(*control);
    exchange_ = std::move(exchange);
  }
  progress_.publish(spec.node.value, published.value);
  exchange_->begin_connecting();
  if (view_.nodes > 1) means_.port.publish(published);
  return {};
}

std::unique_ptr<BucketExchange> AllreduceJob::make_exchange() {
  if (const auto& devices = job_->spec().allreduce_devices) {
    return std::make_unique<DeviceExchange>(devices, view_, buckets_, means_.lane.logger());
  }
  return std::make_unique<HostExchange>(*job_, means_, progress_, *state_, buckets_);
}

Status AllreduceJob::connect() {
  const auto addresses_of = [&](std::uint32_t node) {
    return progress_.addresses_of(node, exchange_->address_count(node));
  };
  const auto before = addresses_of(control_->previous());
  if (!before) return tl::unexpected(before.error());
  const auto after = addresses_of(control_->next());
  if (!after) return tl::unexpected(after.error());
  if (Status connected = control_->connect((*before)[1], (*after)[0]); !connected) return connected;
  return exchange_->connect(progress_);
}

// The values that the view begins with, which this node has, are in the node region and the state.
Status AllreduceJob::first_values() {
  if (job_->spec().init()) {
    return progress_.await([this] { return has_initial_; });
  }
  if (means_.config.store_path.empty()) {
    return fail(ErrorCode::kStore, "the job is to go on from round " + std::to_string(view_.start.value) +
                                       ", but this worker keeps no checkpoints; set [store] path in worker.toml");
  }
  return ReplicaCheckpoints(means_.config.store_path, view_.plan->config, *view_.layout)
      .read(view_.start, {job_->parameters(), state_->slots(), state_->steps()});
}

// From the node that has them along the ring to the one before it, chunk by chunk, so that all links are busy at a time.
Status AllreduceJob::pass_values_on() {
  const NodeJobSpec& spec = job_->spec();
  const Layout& layout = *view_.layout;
  const bool first = spec.node == spec.values_from;
  const bool last = (spec.node.value + 1) % view_.nodes == spec.values_from.value;
  const auto pass = [&](void* data, std::size_t bytes) -> Status {
    if (!first) {
      if (Status got = control_->receive_previous(data, bytes); !got) return got;
    }
    return last ? Status() : control_->send_next(data, bytes);
  };
  ValuesHeader header;
  header.layout_hash = layout.hash();
  header.round = view_.start.value;
  header.slots = view_.resumes ? state_->slots().size() : 0;
  const ValuesHeader own = header;
  if (Status passed = pass(&header, sizeof header); !passed) return passed;
  if (header.magic != own.magic || header.layout_hash != own.layout_hash || header.round != own.round ||
      header.slots != own.slots) {
    return fail(ErrorCode::kConfigMismatch,
                "node " + std::to_string(spec.values_from.value) +
                    " begins the view with other tensors, another optimizer or another round than this node expects; "
                    "use the same release and job file everywhere");
  }
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    if (Status passed = pass(job_->parameters() + range.begin, range.elements * sizeof(float)); !passed) return passed;
    if (!view_.resumes) continue;
    for (float* slot : state_->slots()) {
      if (Status passed = pass(slot + range.begin, range.elements * sizeof(float)); !passed) return passed;
    }
    if (Status passed = pass(&state_->steps()[c], sizeof(std::uint64_t)); !passed) return passed;
  }
  return {};
}

void AllreduceJob::end() {
  const bool parting = progress_.await_close() == Phase::kParting;
  if (exchange_) {
    exchange_->stop([&] {
      const Status met = parting ? control_->meet(milliseconds(kPartingPatienceMs)) : Status();
      if (!met) {
        means_.lane.logger()->info("job '{}': {} does not wait for the others any more: {}", view_.name(),
                                   progress_.place(), met.error().message);
      }
    });
  }
  if (parting) {
    Status saved = checkpointer_ ? exchange_->save(*state_) : Status();
    // Only when both neighbours have all they need of this node may its connections close.
    const Status parted = control_->say_goodbye(milliseconds(kPartingPatienceMs));
    if (!parted && parted.error().code != ErrorCode::kStopped) {
      means_.lane.logger()->info("job '{}': {} leaves without the others' goodbye: {}", view_.name(), progress_.place(),
                                 parted.error().message);
    }
    if (saved && checkpointer_) saved = last_checkpoint();
    outcome_ = outcome_of(saved, checkpointer_ ? std::max(checkpointer_->written(), view_.start) : view_.start);
  }
  checkpointer_.reset();  // waits for the checkpoint that is being written
  std::unique_ptr<GlooRing> control;
  std::unique_ptr<BucketExchange> exchange;
  const auto lock = progress_.lock();
  exchange.swap(exchange_);
  control.swap(control_);
}

Status AllreduceJob::last_checkpoint() {
  const Version reached = job_->min_version();
  if (reached != job_->max_version()) return fail(ErrorCode::kStore, "its buckets are not all at one round");
  // The round of the start is on the disk of the node that passed the values on, and perhaps not on this one.
  const bool had = view_.start.value == 0 || job_->spec().node == job_->spec().values_from;
  return reached.value > view_.start.value || !had ? checkpointer_->finish(Round(reached.value)) : Status();
}

// saved: the state that the view ended with, or why not. newest: the checkpoint that there is if it is not.
SnapshotDone AllreduceJob::outcome_of(const Status& saved, Round newest) const {
  if (means_.config.store_path.empty()) return {view_.job, view_.view, Round(), true, 0, {}};
  const Round reached = std::max(Round(job_->min_version().value), view_.start);
  if (saved) return {view_.job, view_.view, reached, true, 0, {}};
  std::string text = "node " + std::to_string(job_->spec().node.value) + "'s checkpoint of round " +
                     std::to_string(reached.value) + ": " + saved.error().message;
  text += newest.value != 0 ? "; the newest one is that of round " + std::to_string(newest.value)
                            : "; this node has no other";
  return {view_.job, view_.view, newest, false, 0, std::move(text)};
}

}  // namespace tributary
