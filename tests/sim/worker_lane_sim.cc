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

ClientJob client_job(const NodeJobSpec& spec, const std::vector<ChunkIndex>& chunks,
                     std::vector<ConnectionIndex> connections) {
  ClientJob client;
  client.job = spec.job;
  client.view = spec.view;
  client.node = spec.node;
  client.layout = spec.layout;
  client.chunks = chunks;
  client.connections = std::move(connections);
  client.start = Version(spec.start.value);
  client.push = spec.push;
  client.pull = spec.pull;
  client.init = spec.init;
  if (spec.redo && !spec.redo_after.empty()) {
    for (const ChunkIndex chunk : chunks)
      client.redo_after.push_back(spec.redo_after[spec.layout->owner(chunk).shard.value]);
  }
  return client;
}

std::vector<const float*> gradients_of(const NodeJob& job) {
  std::vector<const float*> gradients;
  for (std::uint32_t rank = 0; rank < job.spec().ranks; ++rank) gradients.push_back(job.gradients(rank));
  return gradients;
}

}  // namespace

WorkerLaneSim::WorkerLaneSim(ClusterWorld& world, WorkerSim& worker, std::shared_ptr<NodeJob> job,
                             std::vector<ChunkIndex> chunks, std::vector<ConnectionIndex> connections,
                             const std::vector<std::string>& endpoints)
    : world_(world),
      worker_(worker),
      job_(std::move(job)),
      gather_(job_->spec().layout, chunks, job_->spec().ranks, job_->spec().start),
      reducer_(job_->spec().layout, chunks, gradients_of(*job_), job_->parameters(), job_->spec().push,
               job_->spec().pull, static_cast<ReduceListener&>(*this), job_->spec().redo, job_->spec().start),
      client_(client_job(job_->spec(), chunks, std::move(connections)), static_cast<std::uint16_t>(endpoints.size()),
              ClientOptions{.window_cap_bytes = world.scenario.window_bytes}, *this),
      frames_(job_->spec().layout->chunks()),
      seen_(gather_.tensors().size() * job_->spec().ranks, job_->spec().start.value) {
  for (std::uint16_t i = 0; i < endpoints.size(); ++i) {
    sockets_.push_back(std::make_unique<Dealer>(world.wires, worker, endpoints[i], false,
                                                [this, i](Packet& packet) { receive(ConnectionIndex(i), packet); }));
  }
  links_.resize(endpoints.size());
  for (std::size_t i = 0; i < endpoints.size() && world.scenario.shares_memory; ++i) {
    ServerLaneSim* server = world.lane_at(endpoints[i]);
    if (server == nullptr) continue;
    const NodeJobSpec& spec = job_->spec();
    const ServerLaneSim::Link link = server->link(spec.job, spec.view, spec.node);
    links_[i] = {link.number, link.server, link.mapping, {}, {}};
  }
  client_.start(worker_.now_ns());
}

WorkerLaneSim::~WorkerLaneSim() {
  for (const Link& link : links_) {
    if (link.number == 0) continue;
    world_.clock.after(kNoticeNs, [number = link.number, told = link.server] {
      if (const auto server = told.lock()) server->closed(number);
    });
  }
}

void WorkerLaneSim::initial_values() {
  if (!failed_ && job_->spec().init) client_.initial_values_ready(worker_.now_ns());
}

void WorkerLaneSim::fail_job(LaneFailure failure) {
  if (std::exchange(failed_, true)) return;
  worker_.lane_failed(job_, std::move(failure));
}

// ---- From the trainers to the servers ----

void WorkerLaneSim::scan() {
  if (failed_) return;
  const std::vector<std::uint32_t>& tensors = gather_.tensors();
  complete_.clear();
  for (std::uint32_t rank = 0; rank < job_->spec().ranks; ++rank) {
    const TensorWord* words = job_->tensor_words(rank);
    std::uint64_t* seen = seen_.data() + rank * tensors.size();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorWord& word = words[tensors[i]];
      const std::uint64_t round = word.round.load(std::memory_order_acquire);
      if (round == seen[i]) continue;
      seen[i] = round;
      const std::uint64_t weight = word.weight.load(std::memory_order_relaxed);
      if (Status status = gather_.on_tensor(rank, tensors[i], Round(round), weight, complete_); !status) {
        return fail_job({LaneFailure::Kind::kTrainer, rank, status.error()});
      }
    }
  }
  for (const NodeGather::Complete& done : complete_) {
    reducer_.reduce(done.chunk, done.round, done.weight, client_.wants_residual(done.chunk));
  }
}

void WorkerLaneSim::reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) {
  frames_[chunk.value] = payload;
  const std::size_t frame_bytes = make_encoding(job_->spec().push)->bytes(job_->spec().layout->chunk(chunk).elements);
  world_.judge.made(worker_.node(), chunk, round, weight, payload.first(frame_bytes));
  client_.gradient_ready(chunk, round, weight, worker_.now_ns(), job_->is_last(round));
}

void WorkerLaneSim::send(ConnectionIndex connection, DataMessage message, std::span<const std::byte> payload) {
  Packet packet{std::move(message), {}, {}};
  const Link& link = links_[connection.value];
  packet.place.link = link.number;
  packet.place.ticket = link.read.newest();
  if (!payload.empty()) {
    packet.copied = std::make_shared<const std::vector<std::byte>>(payload.begin(), payload.end());
  }
  sockets_[connection.value]->send(std::move(packet));
}

void WorkerLaneSim::send_push(ConnectionIndex connection, const Push& push) {
  const ChunkIndex chunk = push.key.chunk;
  std::span<const std::byte> payload =
      push.residual == ResidualUse::kAlone ? reducer_.residual(chunk) : frames_[chunk.value];
  if (push.redo) payload = job_->spec().redo->find(chunk, push.round).value().bytes;
  send(connection, push, payload);
}

std::uint64_t WorkerLaneSim::kept_weight(ChunkIndex chunk, Round round) {
  const auto kept = job_->spec().redo->find(chunk, round);
  if (!kept)
    world_.broken(worker_.name() + " is to push round " + std::to_string(round.value) + " again and has it not");
  if (!kept) return 0;
  return kept->weight + (world_.mutation == Mutation::kOtherWeight ? 1 : 0);
}

GateDecision WorkerLaneSim::kept_decision(ChunkIndex chunk, Round round) {
  const auto kept = job_->spec().redo->find(chunk, round);
  return kept ? kept->gate : GateDecision();
}

void WorkerLaneSim::send_init(ConnectionIndex connection, const Init& init) {
  const ChunkRange range = job_->spec().layout->chunk(init.key.chunk);
  const auto* values = reinterpret_cast<const std::byte*>(job_->parameters() + range.begin);
  send(connection, init, {values, range.elements * sizeof(float)});
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
  if (failed_) return;
  if (packet.place.bytes == 0) return handle(from, packet);
  Link& link = links_[from.value];
  if (packet.place.link != link.number) return world_.broken(worker_.name() + " is told a place of another link");
  if (link.read.over(packet.place.ticket)) return;  // as good as lost
  if (!std::ranges::equal(packet.told, *packet.copied)) {
    return world_.broken(worker_.name() + " reads something else than what was answered, where it was told");
  }
  handle(from, packet);
  link.read.read(packet.place.ticket);
}

void WorkerLaneSim::handle(ConnectionIndex from, const Packet& packet) {
  const std::uint64_t now = worker_.now_ns();
  const DataMessage& message = std::get<DataMessage>(packet.message);
  if (const auto* answer = std::get_if<Answer>(&message)) {
    client_.on_answer(from, *answer, packet.payload(), now);
  } else if (const auto* receipt = std::get_if<Receipt>(&message)) {
    client_.on_receipt(from, *receipt, now);
  } else if (const auto* residual = std::get_if<Residual>(&message)) {
    client_.on_residual(from, *residual, packet.payload());
  } else if (const auto* resend = std::get_if<Resend>(&message)) {
    ++world_.resends;
    client_.on_resend(from, *resend, now);
  } else if (const auto* error = std::get_if<ErrorReply>(&message)) {
    client_.on_error(from, *error);
  } else {
    world_.broken("a node got a message that only nodes send");
  }
}

void WorkerLaneSim::answered(const Answer& answer, bool whole, std::span<const std::byte> payload) {
  const ChunkIndex chunk = answer.key.chunk;
  if (!frames_[chunk.value].empty()) {
    reducer_.release(chunk);
    frames_[chunk.value] = {};
  }
  const Round round(answer.version.value);
  if (RedoRing* ring = job_->spec().redo.get()) {
    ring->note_decision(chunk, round, answer.gate);
  }
  if (answer.gate.known()) job_->header().gate[round.value % kGateWords].write(round.value, answer.gate);
  reducer_.deliver(chunk, answer.version, whole, payload);
}

void WorkerLaneSim::delivered(ChunkIndex chunk, Version version) {
  gather_.answered(chunk);
  const ChunkRange range = job_->spec().layout->chunk(chunk);
  world_.judge.delivered(worker_.node(), job_->spec(), chunk, version,
                         {job_->parameters() + range.begin, range.elements});
  job_->chunk_words()[chunk.value].version_plus_one.store(version.value + 1, std::memory_order_release);
  job_->announce();
  world_.wake_trainers(worker_.node());
}

void WorkerLaneSim::residual_restored(ChunkIndex chunk, std::span<const std::byte> values) {
  reducer_.restore_residual(chunk, values);
}

void WorkerLaneSim::reducer_failed(Error error) {
  world_.broken("a reducer failed: " + error.message);
}

bool WorkerLaneSim::keep_residuals() {
  if (failed_ || !make_encoding(job_->spec().push)->keeps_residual() || !client_.started()) return false;
  client_.keep_residuals(worker_.now_ns());
  return !client_.residuals_kept();
}

void WorkerLaneSim::refused(const ErrorReply& error) {
  const bool over = error.code == ErrorCode::kStaleView || error.code == ErrorCode::kUnknownJob;
  if (!over) world_.broken(worker_.name() + " was refused: " + error.message);
  fail_job({over ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused, 0, Error{error.code, error.message}});
}

void WorkerLaneSim::tick() {
  if (!failed_) client_.tick(worker_.now_ns());
  const std::uint64_t unit = job_->spec().layout->chunk_elements() * sizeof(float);
  const std::uint64_t allowed = std::max(world_.scenario.window_bytes, residual_offset(unit) + unit);
  if (client_.in_flight_bytes() > allowed) world_.broken("more bytes are in flight than the window allows");
  for (const auto& socket : sockets_) {
    if (socket->waiting() >= Dealer::kHighWater) world_.broken("a socket's queue is full");
  }
}

}  // namespace tributary::sim
