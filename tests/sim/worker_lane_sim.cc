#include <algorithm>
#include <utility>

#include "tests/sim/cluster_world.h"
#include "tests/sim/server_sim.h"
#include "tests/sim/worker_sim.h"

namespace tributary::sim {
namespace {

// How often a lane is slow to read an answer in a server's memory, and all that comes after it, and how slow.
constexpr double kReadsLate = 0.01;
constexpr std::uint64_t kMinLateNs = 50'000'000, kMaxLateNs = 800'000'000;
constexpr std::uint64_t kNoticeNs = 100'000;  // until a server knows that a worker is gone
constexpr std::uint64_t kMaxAskNs = 500'000;  // until a server on this machine has said whether it shares memory

// A frame's owner may write there again.
constexpr std::byte kOthers{0xff};

std::size_t frame_bytes(const NodeJob& job, const LaneChunk& chunk) {
  return job.plan().push->bytes(chunk.range.elements);
}

}  // namespace

// Servers on a machine have a mapping of their own, and the network reads until it has sent.
struct WorkerLaneSim::Lender {
  std::shared_ptr<NodeJob> memory;
  std::shared_ptr<WorkerLaneJob> job;
};

WorkerLaneSim::WorkerLaneSim(JobWorld& world, WorkerSim& worker, std::shared_ptr<NodeJob> memory, std::uint16_t index)
    : world_(world), worker_(worker), memory_(std::move(memory)) {
  WorkerLaneOptions options;
  options.index = index;
  options.lanes = static_cast<std::uint16_t>(world.scenario.lanes);
  options.window_cap_bytes = world.scenario.window_bytes;
  job_ = WorkerLaneJob::open(memory_, options, *this).value();
  lender_ = std::make_shared<const Lender>(memory_, job_);
  std::vector<std::string> endpoints;
  for (const ChunkOwner& owner : job_->chunks().servers()) {
    endpoints.push_back(memory_->spec().endpoints[owner.shard.value][owner.lane.value]);
    const ConnectionIndex connection(static_cast<std::uint16_t>(sockets_.size()));
    sockets_.push_back(std::make_unique<Dealer>(world.wires, worker, endpoints.back(), false,
                                                [this, connection](Packet& packet) { receive(connection, packet); }));
  }
  links_.resize(endpoints.size());
  if (!world.scenario.shares_memory) {
    job_->start();
    return;
  }
  worker.after(world.random.below(kMaxAskNs), [this, endpoints, life = std::weak_ptr(life_)] {
    if (!life.expired()) settle_links(endpoints);
  });
}

void WorkerLaneSim::settle_links(const std::vector<std::string>& endpoints) {
  const NodeJobSpec& spec = memory_->spec();
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    ServerLaneSim* server = world_.lane_at(endpoints[i]);
    if (server == nullptr) continue;
    const ServerLaneSim::Link link = server->link(spec.view->job, spec.view->view, spec.node);
    links_[i] = {link.number, link.server, link.mapping, {}, {}};
  }
  job_->start();
}

WorkerLaneSim::~WorkerLaneSim() {
  for (const Link& link : links_) {
    if (link.number == 0) continue;
    world_.clock.after(kNoticeNs, [number = link.number, told = link.server] {
      if (const auto server = told.lock()) server->closed(number);
    });
  }
}

std::uint32_t WorkerLaneSim::node() const {
  return world_.scenario.elastic ? worker_.node() : memory_->spec().node.value;
}

std::uint64_t WorkerLaneSim::now_ns() const {
  return worker_.now_ns();
}

// ---- From the trainers to the servers ----

void WorkerLaneSim::scan() {
  job_->scan();
  const RedoRing* ring = memory_->spec().redo.get();
  for (const LaneChunk& chunk : job_->chunks()) {
    if (!ring || job_->failed() || chunk.flight.idle()) continue;
    const Round round(chunk.flight.version.value + 1);
    if (const auto kept = ring->find(chunk.index, round)) {
      world_.judge.made(node(), chunk.whole, round, kept->weight, kept->bytes.first(frame_bytes(*memory_, chunk)));
    }
  }
}

bool WorkerLaneSim::send(ConnectionIndex connection, const DataMessage& message, std::span<const std::byte> payload) {
  Packet packet{message, {}, {}};
  if (const auto* push = std::get_if<Push>(&std::get<DataMessage>(packet.message))) {
    if (!push->redo && push->residual != ResidualUse::kAlone) {
      const ChunkIndex here = memory_->layout().in_part(push->key.chunk).value();
      const std::span<const std::byte> frame = payload.first(frame_bytes(*memory_, *job_->chunks().find(here)));
      world_.judge.made(node(), push->key.chunk, push->round, push->weight, frame);
      frames_[here] = frame;
    }
  }
  const Link& link = links_[connection.value];
  packet.place.link = link.number;
  packet.place.ticket = link.read.newest();
  if (!payload.empty()) {
    packet.copied = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
    packet.lent = payload;
    packet.lender = lender_;
  }
  return sockets_[connection.value]->send(std::move(packet));
}

// ---- From the servers to the trainers ----

void WorkerLaneSim::receive(ConnectionIndex from, Packet& packet) {
  std::deque<Packet>& late = links_[from.value].late;
  const bool first = late.empty();
  if (first && (packet.place.bytes == 0 || !world_.random.chance(kReadsLate))) return read(from, packet);
  late.push_back(std::move(packet));
  if (!first) return;
  worker_.after(world_.random.between(kMinLateNs, kMaxLateNs), [this, from, life = std::weak_ptr(life_)] {
    if (life.expired()) return;
    std::deque<Packet> packets;
    packets.swap(links_[from.value].late);
    for (const Packet& each : packets) read(from, each);
  });
}

void WorkerLaneSim::read(ConnectionIndex from, const Packet& packet) {
  if (job_->failed()) return;
  if (packet.place.bytes == 0) return handle(packet);
  Link& link = links_[from.value];
  if (packet.place.link != link.number) return world_.broken(worker_.name() + " is told a place of another link");
  if (link.read.over(packet.place.ticket)) return;  // as good as lost
  if (!std::ranges::equal(packet.told, *packet.copied)) {
    return world_.broken(worker_.name() + " reads something else than what was answered, where it was told");
  }
  handle(packet);
  link.read.read(packet.place.ticket);
}

void WorkerLaneSim::handle(const Packet& packet) {
  const DataMessage& message = std::get<DataMessage>(packet.message);
  if (std::holds_alternative<Resend>(message)) ++world_.resends;
  const auto* ack = std::get_if<Ack>(&message);
  job_->receive(message, packet.payload());
  if (ack && world_.mutation == Mutation::kWritesAtAck) {
    if (const auto here = memory_->layout().in_part(ack->key.chunk)) write_over(*here);
  }
  if (!job_->publish()) return;
  // Trainers see the answered chunk's new values from here on.
  const ChunkIndex chunk = std::get<Answer>(message).key.chunk;
  const ChunkIndex here = memory_->layout().in_part(chunk).value();
  write_over(here);
  const ChunkRange range = memory_->layout().chunk(here);
  const Version version(memory_->chunk_words()[here.value].version_plus_one.load(std::memory_order_acquire) - 1);
  world_.judge.delivered(node(), memory_->spec(), chunk, version,
                         {memory_->parameters() + range.begin, range.elements});
  world_.wake_trainers(worker_.node());
}

// Overwrites a chunk's frame, unless a ring keeps it. (A residual behind the frame stays, too.)
void WorkerLaneSim::write_over(ChunkIndex chunk) {
  const auto sent = frames_.extract(chunk);
  if (sent.empty()) return;
  const std::span<const std::byte> frame = sent.mapped();
  if (const RedoRing* ring = memory_->spec().redo.get()) {
    const std::byte* const begin = ring->memory().data();
    if (frame.data() >= begin && frame.data() < begin + ring->memory().size()) return;
  }
  std::fill_n(const_cast<std::byte*>(frame.data()), frame.size(), kOthers);
}

void WorkerLaneSim::refused(const std::string& line) {
  world_.broken(worker_.name() + ": " + line);
}

void WorkerLaneSim::failed(LaneFailure failure) {
  if (failure.kind == LaneFailure::Kind::kRefused) {
    world_.broken(worker_.name() + " cannot go on: " + failure.error.message);
  }
  worker_.lane_failed(memory_, std::move(failure));
}

void WorkerLaneSim::tick() {
  job_->tick();
  const std::uint64_t unit = memory_->layout().chunk_elements() * sizeof(float);
  const std::uint64_t allowed = std::max(world_.scenario.window_bytes, residual_offset(unit) + unit);
  if (job_->client().in_flight_bytes() > allowed) world_.broken("more bytes are in flight than the window allows");
  for (const auto& socket : sockets_) {
    if (socket->waiting() >= Dealer::kHighWater) world_.broken("a socket's queue is full");
  }
}

}  // namespace tributary::sim
