// A lane's connections to the servers of a job: sockets, and shared memory with servers on this machine.
#include <algorithm>

#include "common/zmq_util.h"
#include "worker/lane_job.h"

namespace tributary {
namespace {

// Data messages are at most a chunk's payload; headers are smaller than the slack.
constexpr std::size_t kMaxDataMessage = kMaxDataPayload + 4096;
// A connection has at most one push (or Init and Pull) per chunk under way, and at most one repetition of each before
// the first time-out of the next; beyond this a send is refused and ClientCore's time-outs repeat it.
constexpr int kMessagesPerChunk = 4;
constexpr int kHighWaterSlack = 64;

}  // namespace

Status WorkerLaneJob::connect(zmq::context_t& context, const std::vector<ChunkOwner>& owners) {
  std::vector<int> chunks_of(owners.size(), 0);
  const Layout& layout = *job_->spec().layout;
  for (const ChunkIndex chunk : chunks_) {
    const auto at = std::ranges::find(owners, layout.owner(chunk)) - owners.begin();
    ++chunks_of[static_cast<std::size_t>(at)];
  }
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto& endpoints = job_->spec().endpoints;
    const ChunkOwner owner = owners[i];
    if (owner.shard.value >= endpoints.size() || owner.lane.value >= endpoints[owner.shard.value].size()) {
      return fail(ErrorCode::kInvalidArgument, "the coordinator gave chunks to lane " +
                                                   std::to_string(owner.lane.value) + " of server " +
                                                   std::to_string(owner.shard.value) + " but named no address for it");
    }
    const std::string& endpoint = endpoints[owner.shard.value][owner.lane.value];
    try {
      zmq::socket_t socket(context, zmq::socket_type::dealer);
      set_common_options(socket, kMaxDataMessage, kMessagesPerChunk * chunks_of[i] + kHighWaterSlack);
      socket.connect(endpoint);
      sockets_.push_back(std::move(socket));
    } catch (const zmq::error_t& e) {
      return fail(ErrorCode::kUnavailable, "cannot connect to server " + std::to_string(owner.shard.value) + " at '" +
                                               endpoint + "': " + e.what() + "; check its [server] bind and advertise");
    }
  }
  links_.resize(owners.size());
  servers_ = owners;
  return {};
}

// Memory is shared with servers that say so before the first message: then every payload goes that way, or none does.
void WorkerLaneJob::ask_links(const std::vector<ChunkOwner>& owners, std::uint64_t now) {
  const auto& locals = job_->spec().locals;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto [shard, lane] = owners[i];
    if (shard.value >= locals.size() || lane.value >= locals[shard.value].size()) continue;
    const std::string& name = locals[shard.value][lane.value];
    if (name.empty()) continue;
    auto socket = connect_link(name);
    auto link = !socket ? tl::unexpected(socket.error()) : regions().and_then([&](auto shared) {
      const LinkRequest request{job_->spec().job, job_->spec().view, job_->spec().node};
      return LaneLink::ask(std::move(*socket), request, std::move(shared), now / 1'000'000);
    });
    if (link) {
      links_[i] = std::move(*link);
    } else {
      not_shared(i, link.error());
    }
  }
}

// What the payloads to servers lie in.
Result<std::vector<const SharedMemory*>> WorkerLaneJob::regions() {
  std::vector<const SharedMemory*> regions;
  if (job_->spec().devices) {
    if (!copies_.memory()) {
      if (!job_->take_memory(copies_.bytes())) {
        return fail(ErrorCode::kLimit, "[limits] max_shared_memory has no room for copies of frames");
      }
      if (Status allocated = copies_.allocate(); !allocated) return tl::unexpected(allocated.error());
    }
    regions.push_back(&copies_.memory());
  } else {
    if (reducer_->frames() != nullptr) regions.push_back(reducer_->frames());
    if (reducer_->lends_gradients()) regions.push_back(&job_->rank_memory(0));
  }
  if (job_->spec().init) regions.push_back(&job_->node_memory());
  return regions;
}

void WorkerLaneJob::not_shared(std::size_t connection, const Error& why) {
  logger_->info("job '{}': payloads to lane {} of server {} go over a socket: {}", job_->spec().name,
                servers_[connection].lane.value, servers_[connection].shard.value, why.message);
}

void WorkerLaneJob::settle_links(std::uint64_t now) {
  if (settled_) return;
  std::uint64_t shared = 0;
  bool waits = false;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].asked()) {
      if (Status settled = links_[i].poll(now / 1'000'000); !settled) not_shared(i, settled.error());
    }
    waits |= links_[i].asked();
    shared += links_[i].shared() ? 1 : 0;
  }
  if (waits) return;
  settled_ = true;
  LaneJobStats& stats = job_->lane_stats(lane_);
  stats.connections.store(links_.size(), std::memory_order_relaxed);
  stats.shared_connections.store(shared, std::memory_order_relaxed);
  for (std::size_t i = 0; i < links_.size() && shared < links_.size(); ++i) {
    if (links_[i].shared()) client_.crosses_no_link(ConnectionIndex(static_cast<std::uint16_t>(i)));
  }
  client_.start(now);
  if (initial_values_wait_) client_.initial_values_ready(now);
}

}  // namespace tributary
