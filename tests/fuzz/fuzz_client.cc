// Feeds a worker's lane messages that servers could send, in any order and of any round.
#include "common/config/job_json.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "worker/node/client_core.h"

namespace tributary::fuzz::client {
namespace {

constexpr std::uint32_t kChunks = 3;
constexpr std::uint64_t kElements = 2 * testing::kChunk + 32;
constexpr std::uint64_t kStart = 3;  // of jobs that go on
constexpr std::size_t kMostMoves = 300;

constexpr std::string_view kJobs[] = {
    R"({"job":{"name":"a"}})",
    R"({"job":{"name":"a"},"encoding":{"push":"int8","pull":"int8-delta"}})",
    R"({"job":{"name":"a","mode":"ssp"},"encoding":{"pull":"bf16"}})",
    R"({"job":{"name":"a"},"encoding":{"push":"onebit"}})",
};

enum class Move : std::uint8_t { kReady, kAnswer, kAck, kResidual, kResend, kError, kTime, kLeave, kEnd };

class Run final : private ClientOutput {
 public:
  explicit Run(Choices input) : input_(input) {
    const auto config = job_from_json(kJobs[input_.number() % std::size(kJobs)]);
    require(config.has_value(), config ? "" : config.error().message);
    const bool fresh = input_.flag(), loses = input_.flag();
    ClientJob job;
    job.view = testing::view_of(*config, testing::layout_of(kElements, 2),
                                {.nodes = 2, .start = Round(fresh ? 0 : kStart), .resumes = !fresh});
    if (!fresh && loses && job.view->plan->has_rounds()) job.redo_after.assign(kChunks, Version(1));
    plan_ = job.view->plan;
    chunks_ = std::make_unique<LaneChunks>(job.view->layout, job.view->start);
    core_ = std::make_unique<ClientCore>(std::move(job), *chunks_, ClientOptions{.window_cap_bytes = 8192},
                                         static_cast<ClientOutput&>(*this));
    core_->start(now_);
    if (fresh) core_->initial_values_ready(now_);
  }
  void all() {
    for (std::size_t moves = 0; moves < kMostMoves && !input_.over(); ++moves) {
      move(static_cast<Move>(input_.number() % static_cast<unsigned>(Move::kEnd)));
    }
  }

 private:
  void send(const LaneChunk&, const DataMessage&, std::span<const std::byte>) override {}
  std::optional<RedoRing::Frame> kept(const LaneChunk&, Round) override { return RedoRing::Frame{}; }
  std::span<const std::byte> residual(const LaneChunk&) override { return {}; }
  std::span<const std::byte> initial_values(const LaneChunk&) override { return {}; }
  void answered(LaneChunk& chunk, const Answer& answer, bool whole, std::span<const std::byte> payload) override {
    const Encoding& encoding = whole ? encoding_for(EncodingId::kFp32) : *plan_->pull;
    require(payload.size() == encoding.bytes(chunk.range.elements), "what is decoded has the right length");
    require(answer.version == chunk.flight.version, "and the version that is taken from now on");
  }
  void residual_restored(LaneChunk& chunk, std::span<const std::byte> values) override {
    require(values.size() == chunk.range.elements * sizeof(float), "a residual has the right length");
  }
  void refused(const ErrorReply& error) override { require(!error.message.empty(), "a refusal has words"); }

  ChunkKey key(std::uint8_t which) {
    ChunkKey key{testing::kJob, testing::kView, NodeRank(0), ChunkIndex(which % kChunks)};
    if (which >= 0xf8) key = {JobId(input_.number()), ViewId(input_.number()), {}, ChunkIndex(input_.number())};
    return key;
  }
  // Returns the chunk's next round or one near it; at times any round.
  std::uint64_t round(std::uint8_t which) {
    const std::uint8_t near = input_.number();
    const std::uint64_t version = (*chunks_)[which % kChunks].flight.version.value;
    return near < 0xf0 ? version + near % 3 : input_.number<std::uint64_t>();
  }

  void move(Move move) {
    const std::uint8_t which = input_.number();
    LaneChunk& chunk = (*chunks_)[which % kChunks];
    switch (move) {
      case Move::kReady:
        // As a lane does: every chunk has parameters first.
        if (!core_->started() || leaving_ || !chunk.flight.idle()) return;
        chunk.gradient = {Round(chunk.flight.version.value + 1), which, {}, {}};
        return core_->gradient_ready(chunk, now_, which >= 0xf0);
      case Move::kAnswer: {
        const std::uint8_t more = input_.number();
        Answer answer{key(which), Version((more & 1u) != 0 ? round(which) : kStart * (more >> 1 & 1u))};
        const bool whole = (more & 4u) != 0;
        answer.encoding = more >= 0xf8 ? EncodingId::kBf16 : whole ? EncodingId::kFp32 : plan_->pull->id();
        answer.residual_sent = (more & 8u) != 0;
        if (more & 16u) answer.snapshot_round = Round(answer.version.value + 1);
        const Bytes payload(make_encoding(answer.encoding)->bytes(chunk.range.elements) + (more >= 0xfc ? 1 : 0));
        return core_->on_answer(answer, payload, now_);
      }
      case Move::kAck: {
        const std::uint8_t more = input_.number();
        const Ack ack{key(which), Round(round(which)), (more & 1u) != 0, (more & 2u) != 0};
        return core_->on_ack(ack, now_);
      }
      case Move::kResidual: {
        const Bytes values(chunk.range.elements * sizeof(float) + (which >= 0xf0 ? 4 : 0));
        return core_->on_residual(Residual{key(which), Version(input_.flag() ? kStart : 0)}, values, now_);
      }
      case Move::kResend:
        return core_->on_resend(Resend{key(which), Round(round(which))}, now_);
      case Move::kError: {
        const ErrorReply error{which >= 0x80 ? ChunkKey{} : key(which), Round(round(which)),
                               static_cast<ErrorCode>(which % 23), "it"};
        return core_->on_error(error, now_);
      }
      case Move::kTime:
        now_ += which * 50'000'000ull;
        return core_->tick(now_);
      case Move::kLeave:
        if (which < 0xf0 || !core_->started() || !plan_->push->keeps_residual()) return;
        leaving_ = true;
        return core_->keep_residuals(now_);
      case Move::kEnd:
        return;
    }
  }

  Choices input_;
  std::shared_ptr<const JobPlan> plan_;
  std::unique_ptr<LaneChunks> chunks_;
  std::unique_ptr<ClientCore> core_;
  std::uint64_t now_ = 1'000'000'000;
  bool leaving_ = false;
};

// First parameters, then rounds with acks and answers.
Bytes training(std::uint8_t job, bool fresh) {
  Bytes input{static_cast<std::byte>(job), static_cast<std::byte>(fresh), std::byte{0}};
  const auto say = [&](Move move, std::initializer_list<unsigned> numbers) {
    input.push_back(static_cast<std::byte>(move));
    for (const unsigned number : numbers) input.push_back(static_cast<std::byte>(number));
  };
  for (unsigned chunk = 0; chunk < kChunks; ++chunk) say(Move::kAnswer, {chunk, fresh ? 4u : 6u});
  for (unsigned round = 1; round <= 3; ++round) {
    for (unsigned chunk = 0; chunk < kChunks; ++chunk) {
      say(Move::kReady, {chunk});
      say(Move::kAck, {chunk, 0, 1});
      say(Move::kAnswer, {chunk, 1, 1});
    }
    say(Move::kTime, {10});
  }
  return input;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint8_t job = 0; job < std::size(kJobs); ++job) {
    all.push_back(training(job, true));
    all.push_back(training(job, false));
  }
  return all;
}

void run(std::span<const std::byte> bytes) {
  Run(Choices(bytes)).all();
}

Target target() {
  return {"client", seeds, run};
}

}  // namespace tributary::fuzz::client
