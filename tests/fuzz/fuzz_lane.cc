// Feeds a server's lane messages that workers could send, in any order and of any round, among the commands that result
// from a coordinator's messages.
#include <array>
#include <map>

#include "common/config/job_json.h"
#include "common/wire/codec.h"
#include "server/lane/lane_jobs.h"
#include "tests/changed_view.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/unit/server/shard/core_fixture.h"

namespace tributary::fuzz::lane {
namespace {

constexpr std::uint32_t kNodes = 2;
constexpr std::uint64_t kElements = testing::kChunk + 32;  // two chunks
constexpr std::size_t kMostMoves = 200;

// Kinds of jobs, each with rules of its own for pushes.
constexpr std::string_view kJobs[] = {
    R"({"job":{"name":"a"}})",
    R"({"job":{"name":"a"},"optimizer":{"name":"adamw"},"recovery":{"redo_mb":16},"encoding":{"push":"int8","pull":"int8-delta"}})",
    R"({"job":{"name":"a"},"gate":{"clip_norm":1.0,"loss_scale":"dynamic"}})",
    R"({"job":{"name":"a","mode":"ssp"},"ssp":{"staleness":1}})",
    R"({"job":{"name":"a","mode":"async"},"encoding":{"pull":"bf16"}})",
    R"({"job":{"name":"a"},"encoding":{"push":"topk:0.01"}})",
    R"({"job":{"name":"a"},"encoding":{"push":"onebit","pull":"fp16"},"gate":{"clip_norm":1.0}})",
};

enum class Move : std::uint8_t {
  kPush,
  kInit,
  kPull,
  kQuery,
  kFromServer,
  kTime,
  kSnapshot,
  kDecide,
  kStop,
  kPark,
  kOpen,
  kReopen,
  kResume,
  kLink,
  kUnlink,
  kEnd
};

class Everybody final : public LaneOutput, public LaneListener {
 public:
  struct NoPreparing final : PoolPreparing {
    void begin(BufferPool&, std::size_t, std::function<void()> done) override { done(); }
    void end() override {}
  };
  std::uint64_t now_ms() const override { return now; }
  std::uint64_t now_ns() const override { return now * 1'000'000; }
  void send(PeerId, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) override {
    const auto bytes = encode_data(message, encoded_, place);
    require(decode_data(bytes).has_value(), "what a lane says can be understood");
    require(!std::holds_alternative<Answer>(message) || values.size() > 0, "an answer has values");
  }
  std::unique_ptr<PoolPreparing> preparing() override { return std::make_unique<NoPreparing>(); }
  void refused(const std::string&) override {}
  void warn(const std::string&) override {}

  void lane_opened(LaneIndex, JobId, ViewId, const Status&) override {}
  void lane_snapshot(LaneIndex, JobId, ViewId, Round, bool) override {}
  void lane_parked(LaneIndex, JobId, ViewId, bool, Version, Version) override {}
  void lane_stopped(LaneIndex, JobId, ViewId, Round, bool) override {}
  void lane_captured(ChunkSnapshot snapshot) override { captured[snapshot.chunk] = std::move(snapshot); }

  std::uint64_t now = 1000;
  std::map<ChunkIndex, ChunkSnapshot> captured;  // the newest of each, as a writer holds them

 private:
  std::array<std::byte, kMaxErrorHeader> encoded_{};
};

class Run {
 public:
  explicit Run(Choices input) : input_(input), jobs_({}, everybody_, everybody_) {
    const auto config = job_from_json(kJobs[input_.number() % std::size(kJobs)]);
    require(config.has_value(), config ? "" : config.error().message);
    job_.view = testing::view_of(*config, testing::layout_of(kElements), {.nodes = kNodes});
    job_.recovers = input_.flag() && job_.plan().has_rounds();
    open();
  }
  void all() {
    for (std::size_t moves = 0; moves < kMostMoves && !input_.over(); ++moves) {
      move(static_cast<Move>(input_.number() % static_cast<unsigned>(Move::kEnd)));
      jobs_.turn();
    }
    everybody_.captured.clear();
    jobs_.told().clear();
    for (const auto& pool : jobs_.end()) require(pool->in_use() == 0, "nothing is left of a job that has ended");
  }

 private:
  JobId job() const { return job_.view->job; }
  ViewId view() const { return job_.view->view; }
  const JobConfig& config() const { return job_.plan().config; }
  std::shared_ptr<LaneJobGauges> gauges() const {
    return std::make_shared<LaneJobGauges>(job_.plan().has_clocks() ? kNodes : 0);
  }
  void open() {
    jobs_.open(job_, gauges());
    for (const auto& [chunk, snapshot] : everybody_.captured) {
      if (job_.view->resumes) jobs_.restore(job(), view(), chunk, snapshot.state);
    }
    jobs_.opened(job(), view(), job_.view->resumes);
  }
  // The next one, which goes on with what was captured at `start`, if it does.
  void next_view(std::optional<Round> start = {}) {
    job_ = testing::changed(job_, [&](ViewPlan& plan, JobConfig&) {
      plan.view = plan.view.next();
      plan.resumes = start.has_value();
      plan.start = start.value_or(Round());
    });
  }

  // Mostly what fits, at times anything.
  ChunkKey key() {
    const std::uint8_t odd = input_.number();
    ChunkKey key{job(), view(), NodeRank(odd & 1u), ChunkIndex(odd >> 1 & 1u)};
    if (odd < 0xf0) return key;
    if (odd & 1u) key.job = JobId(input_.number());
    if (odd & 2u) key.view = ViewId(input_.number());
    if (odd & 4u) key.node = NodeRank(input_.number<std::uint32_t>());
    if (odd & 8u) key.chunk = ChunkIndex(input_.number<std::uint32_t>());
    return key;
  }
  std::uint64_t round() {
    const std::uint8_t small = input_.number();
    return small < 0xf0 ? small % 8 : input_.number<std::uint64_t>();
  }
  GateDecision decision() {
    GateDecision decision{static_cast<GateVerdict>(input_.number() % 5), 0.5, 2.0, 1024.0f, input_.number()};
    decision.check();
    return decision;
  }
  Bytes payload(const ChunkKey& key, std::uint64_t weight) {
    const std::uint8_t kind = input_.number() % 8;
    const std::size_t elements = key.chunk.value == 0 ? testing::kChunk : kElements - testing::kChunk;
    const auto value = input_.number<float>();
    if (kind == 0) return Bytes(input_.number());
    if (kind == 1) return testing::frame_of(elements, value);  // fp32
    Bytes frame = testing::frame_of(elements, value, config().push, weight);
    if (kind == 2) {  // damaged
      const auto damage = input_.take(std::min<std::size_t>(16, frame.size()));
      std::ranges::copy(damage, frame.begin());
    }
    if (kind == 3) {  // with a residual behind it
      frame.resize(residual_offset(frame.size()));
      const Bytes residual = testing::frame_of(elements, value);
      frame.insert(frame.end(), residual.begin(), residual.end());
    }
    return frame;
  }
  void say(const DataMessage& message, Bytes bytes = {}) {
    LaneJobs::Received received;
    const std::uint8_t odd = input_.number();
    received.frames = odd < 0xf0 ? (bytes.empty() ? 1 : 2) : odd & 3;
    if ((odd & 3u) == 3) received.place = {odd & 4u ? link_ : input_.number(), 0, 0, 0, input_.number()};
    if ((odd & 0x1fu) == 0x1f) received.place.bytes = bytes.size();
    received.payload = testing::payload_of(std::move(bytes));
    if ((odd & 0x3fu) == 0x3f) received.payload = fail(ErrorCode::kInvalidArgument, "a place in no region");
    const PeerId from = testing::peer_of(odd >> 6);
    jobs_.receive(from, message, std::move(received));
  }

  void move(Move move) {
    switch (move) {
      case Move::kPush: {
        Push push{.key = key(), .round = Round(round())};
        push.weight = input_.number() < 0xf0 ? 4 : input_.number<std::uint64_t>();
        push.encoding = config().push.id;
        const std::uint8_t more = input_.number();
        push.residual = static_cast<ResidualUse>(more % 3);
        push.last = (more & 0x04u) != 0;
        push.redo = (more & 0x08u) != 0;
        if (more & 0x10u) push.gate = decision();
        if (more & 0x20u) {
          const StepSettings said{input_.number<double>(), input_.number<double>(), input_.number<double>()};
          push.settings.assign(1 + (more >> 6), said);
        }
        if (more == 0xff) push.encoding = static_cast<EncodingId>(input_.number() % (last_encoding() + 1));
        return say(push, payload(push.key, push.weight));
      }
      case Move::kInit: {
        const Init init{key()};
        return say(init, payload(init.key, 1));
      }
      case Move::kPull:
        return say(Pull{key(), Version(round())});
      case Move::kQuery:
        return say(Query{key(), Round(round()), input_.flag()});
      case Move::kFromServer:
        if (input_.flag()) return say(ErrorReply{key(), Round(round()), ErrorCode::kInternal, "it"});
        return say(Answer{key(), Version(round())});
      case Move::kTime:
        everybody_.now += input_.number() * 1000u;
        if (input_.flag()) everybody_.captured.clear();
        return jobs_.snapshot_written(job());
      case Move::kSnapshot:
        if (input_.flag()) jobs_.prepare_snapshot(job(), view());
        return jobs_.snapshot_at(job(), view(), Round(round()));
      case Move::kDecide:
        return jobs_.decide({job(), view(), Round(round()), decision()});
      case Move::kStop: {
        const bool keep = input_.flag(), park = input_.flag();
        return jobs_.stop_job(job(), view(), keep, Round(round()), park);
      }
      case Move::kPark:
        return jobs_.park(job(), view());
      case Move::kOpen:
        next_view();
        return open();
      case Move::kReopen:
        if (jobs_.parked(job()) == nullptr) return;
        next_view();
        jobs_.reopen(job_, gauges());
        return jobs_.opened(job(), view(), false);
      case Move::kResume:
        if (everybody_.captured.empty()) return;
        next_view(everybody_.captured.begin()->second.round);
        return open();
      case Move::kLink: {
        const LinkRequest request{job(), view(), NodeRank(input_.number() % 3)};
        const auto shared = jobs_.shared(request);
        if (!shared) return;
        const auto link = jobs_.told().open(request.job, request.view, request.node, *shared->pool, shared->chunks);
        if (link) link_ = *link;
        return;
      }
      case Move::kUnlink:
        return jobs_.told().closed(input_.flag() ? link_ : input_.number());
      case Move::kEnd:
        return;
    }
  }

  Choices input_;
  Everybody everybody_;
  LaneJobs jobs_;
  ShardJob job_;
  std::uint32_t link_ = 0;  // made last
};

// A training of some rounds: questions before there are values, initial values, pushes of both nodes, chunk by chunk.
Bytes training(std::uint8_t job) {
  Bytes input{static_cast<std::byte>(job), std::byte{1}};
  const auto say = [&](std::initializer_list<unsigned> numbers) {
    for (const unsigned number : numbers) input.push_back(static_cast<std::byte>(number));
  };
  const auto move = [](Move m) { return static_cast<unsigned>(m); };
  say({move(Move::kLink), 0});
  for (const unsigned key : {0u, 2u}) say({move(Move::kQuery), key, 0, 0, 7, 0});
  for (const unsigned chunk : {0u, 2u}) say({move(Move::kInit), chunk, 1, 0, 0, 0, 0x3f, 0});
  for (unsigned round = 1; round <= 4; ++round) {
    for (const unsigned key : {0u, 1u, 2u, 3u})
      say({move(Move::kPush), key, round, 0, 0, 4, 0, 0, 0x80, 0x3e, (key & 1u) << 6});
    say({move(Move::kDecide), round, 1, 3});
    if (round == 2) say({move(Move::kSnapshot), 0, 4});
  }
  say({move(Move::kStop), 1, 1, 4});
  say({move(Move::kResume)});
  for (const unsigned key : {0u, 1u, 2u, 3u}) say({move(Move::kPull), key, 4, (key & 1u) << 6});
  return input;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint8_t job = 0; job < std::size(kJobs); ++job) all.push_back(training(job));
  return all;
}

void run(std::span<const std::byte> bytes) {
  Run(Choices(bytes)).all();
}

Target target() {
  return {"lane", seeds, run};
}

}  // namespace tributary::fuzz::lane
