#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/reduce/redo_ring.h"

namespace tributary::redo_ring_test {
namespace {

constexpr std::uint64_t kChunk = 1024;
constexpr std::uint32_t kRounds = 4;
const std::vector<TensorSpec> kTensors = {{"w", {2500}}};  // three chunks, the last one short

Layout layout() {
  const ShardSlots one{};
  return *Layout::make(kTensors, kChunk, {&one, 1});
}

std::shared_ptr<RedoRing> ring_of(EncodingSpec push = {}) {
  return required(RedoRing::create(JobId(5), NodeRank(1), layout(), push, kRounds));
}

void fill(RedoRing& ring, std::uint32_t chunk, std::uint64_t round) {
  std::byte* frame = ring.frame(ChunkIndex(chunk), Round(round));
  std::memset(frame, static_cast<int>(16 * chunk + round), layout().chunk(ChunkIndex(chunk)).elements * sizeof(float));
  ring.publish(ChunkIndex(chunk), Round(round), 100 * round + chunk);
}

bool holds(const RedoRing& ring, std::uint32_t chunk, std::uint64_t round) {
  const auto frame = ring.find(ChunkIndex(chunk), Round(round));
  if (!frame) return false;
  CHECK(frame->bytes.size() == layout().chunk(ChunkIndex(chunk)).elements * sizeof(float));
  CHECK(frame->bytes.front() == static_cast<std::byte>(16 * chunk + round));
  CHECK(frame->bytes.back() == static_cast<std::byte>(16 * chunk + round));
  CHECK(frame->weight == 100 * round + chunk);
  return true;
}

// Another process's view of the ring, and the words in it that name a round: those before fill()'s weights.
struct Scribbler {
  explicit Scribbler(const RedoRing& ring) : size(ring.memory().size()) {
    words =
        static_cast<std::uint64_t*>(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring.memory().fd(), 0));
    REQUIRE(words != MAP_FAILED);
  }
  ~Scribbler() { ::munmap(words, size); }
  std::uint64_t& round_of(std::uint32_t chunk, std::uint64_t round) const {
    std::uint64_t* found = nullptr;
    for (std::size_t i = 0; i + 1 < size / sizeof *words; ++i) {
      if (words[i] == round && words[i + 1] == 100 * round + chunk) found = words + i;
    }
    REQUIRE(found);
    return *found;
  }
  // Returns the decision of a round whose coefficient is 1 and whose norm is 2.
  std::uint64_t* decision_of(std::uint64_t round) const {
    for (std::size_t i = 0; i + 4 < size / sizeof *words; ++i) {
      const bool here = words[i] == round && words[i + 1] == std::bit_cast<std::uint64_t>(1.0) &&
                        words[i + 2] == std::bit_cast<std::uint64_t>(2.0);
      if (here) return words + i;
    }
    FAIL("no decision about round " << round);
    return nullptr;
  }
  std::size_t size;
  std::uint64_t* words;
};

FileDescriptor copy_of(const RedoRing& ring) {
  return FileDescriptor(::fcntl(ring.memory().fd(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace

TEST_CASE("frames are found until a later round takes their place") {
  const auto ring = ring_of();
  CHECK(ring->kept().last < ring->kept().first);
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      CHECK_FALSE(ring->find(ChunkIndex(chunk), Round(round)));
      fill(*ring, chunk, round);
    }
  }
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) CHECK(holds(*ring, chunk, round));
  }
  CHECK(ring->kept().first == Round(1));
  CHECK(ring->kept().last == Round(kRounds));
  fill(*ring, 0, kRounds + 1);
  CHECK(holds(*ring, 0, kRounds + 1));
  CHECK_FALSE(ring->find(ChunkIndex(0), Round(1)));
  CHECK(holds(*ring, 1, 1));
  // The rounds that all chunks have.
  CHECK(ring->kept().first == Round(2));
  CHECK(ring->kept().last == Round(kRounds));
}

TEST_CASE("the place of the open round is none of a round that is kept, and is flat") {
  const auto ring = ring_of();
  CHECK(ring->slots() == kRounds + 1);
  for (std::uint64_t round = 1; round <= 3 * kRounds; ++round) {
    auto* flat = reinterpret_cast<float*>(ring->memory().data() + ring->slot_offset(Round(round)));
    std::fill_n(flat, layout().flat_elements(), static_cast<float>(round));
    for (std::uint64_t kept = round - std::min<std::uint64_t>(round - 1, kRounds); kept < round; ++kept) {
      for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
        const auto frame = required(ring->find(ChunkIndex(chunk), Round(kept)));
        CHECK(reinterpret_cast<const float*>(frame.bytes.data())[0] == static_cast<float>(kept));
        CHECK(frame.weight == kept);
      }
    }
    if (round > kRounds) CHECK_FALSE(ring->find(ChunkIndex(0), Round(round - kRounds - 1)));
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      CHECK(ring->written(ChunkIndex(chunk), Round(round)).data() ==
            static_cast<const void*>(flat + layout().chunk(ChunkIndex(chunk)).begin));
      ring->publish(ChunkIndex(chunk), Round(round), round);
    }
  }
}

TEST_CASE("rounds of a job with a gate count when what was decided about them is known") {
  const auto ring = ring_of();
  const auto decision = [](std::uint64_t round) {
    return GateDecision{GateVerdict::kClipped, 0.5, static_cast<double>(round), 2.0f, 7};
  };
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      fill(*ring, chunk, round);
      CHECK_FALSE(ring->find(ChunkIndex(chunk), Round(round))->gate.known());
    }
    // All of the round, whichever chunk's answer says it.
    if (round < 3) ring->note_decision(Round(round), decision(round));
  }
  ring->note_decision(Round(3), {});  // nobody has decided
  CHECK(ring->find(ChunkIndex(1), Round(2))->gate == decision(2));
  CHECK(ring->kept().last == Round(3));
  CHECK(ring->kept(true).first == Round(1));
  CHECK(ring->kept(true).last == Round(2));
  const auto again = required(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, {}));
  CHECK(again->kept(true).last == Round(2));
  CHECK(again->find(ChunkIndex(2), Round(1))->gate == decision(1));
  ring->forget_after(Round(1));
  CHECK(ring->kept(true).last == Round(1));
  // A round that is gone through again has not been decided about.
  fill(*ring, 0, 2);
  CHECK_FALSE(ring->find(ChunkIndex(0), Round(2))->gate.known());
}

TEST_CASE("a frame that is being written is not found, nor its round counted") {
  const auto ring = ring_of();
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) fill(*ring, chunk, 1);
  for (std::uint32_t chunk = 0; chunk < 3; ++chunk) fill(*ring, chunk, 2);
  ring->frame(ChunkIndex(1), Round(2));
  CHECK_FALSE(ring->find(ChunkIndex(1), Round(2)));
  CHECK(ring->kept().last == Round(1));
}

TEST_CASE("what a node has not said is known of the last two rounds that are complete on all chunks") {
  const auto ring = ring_of(EncodingId::kInt8);
  const auto are = [&](std::uint64_t first, std::uint64_t last) {
    const RedoRing::Range range = ring->residuals();
    return range.first == Round(first) && range.last == Round(last);
  };
  const auto encode = [&](std::uint64_t round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      ring->begin_residual(ChunkIndex(chunk), Round(round));
      ring->publish_residual(ChunkIndex(chunk), Round(round));
    }
  };
  CHECK(are(0, 0));  // nothing, as a job begins
  encode(1);
  CHECK(are(0, 1));
  CHECK(ring->area(ChunkIndex(1), Round(0)) == ring->area(ChunkIndex(1), Round(2)));
  CHECK(ring->area(ChunkIndex(1), Round(0)) != ring->area(ChunkIndex(1), Round(1)));
  ring->begin_residual(ChunkIndex(1), Round(2));  // and no further, because the process dies
  CHECK(are(1, 1));
  ring->publish_residual(ChunkIndex(1), Round(2));
  CHECK(are(1, 1));  // not all chunks are there yet
  encode(2);
  CHECK(are(1, 2));
  const auto again = required(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, EncodingId::kInt8));
  CHECK(again->residuals().last == Round(2));
  ring->forget_after(Round(1));
  CHECK(are(1, 1));
  ring->forget_after(Round(0));
  CHECK(ring->residuals().last < ring->residuals().first);
  const auto plain = ring_of();
  CHECK(plain->residuals().last < plain->residuals().first);
}

TEST_CASE("with a gate residuals of three rounds are kept: the last round's decision may not have come") {
  const auto ring = *RedoRing::create(JobId(5), NodeRank(1), layout(), EncodingId::kInt8, kRounds + 1, 3);
  for (std::uint64_t round = 1; round <= 7; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      ring->begin_residual(ChunkIndex(chunk), Round(round));
      ring->publish_residual(ChunkIndex(chunk), Round(round));
      const RedoRing::Range all = ring->residuals();
      if (chunk == 2) CHECK(all.first == Round(round < 2 ? 0 : round - 2));
      CHECK(all.last == Round(chunk == 2 ? round : round - 1));
    }
  }
  const auto again = required(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, EncodingId::kInt8));
  CHECK(again->residuals().first == Round(5));
  CHECK(again->residuals().last == Round(7));
}

TEST_CASE("rounds that are gone through again are forgotten") {
  const auto ring = ring_of();
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) fill(*ring, chunk, round);
  }
  ring->forget_after(Round(2));
  CHECK(ring->kept().last == Round(2));
  CHECK_FALSE(ring->find(ChunkIndex(0), Round(3)));
  CHECK(holds(*ring, 0, 2));
}

TEST_CASE("the next process finds what the last one kept") {
  auto ring = ring_of();
  for (std::uint64_t round = 1; round <= 3; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) fill(*ring, chunk, round);
  }
  FileDescriptor fd = copy_of(*ring);
  ring.reset();
  auto found = RedoRing::adopt(std::move(fd), NodeRank(1), kTensors, {});
  REQUIRE_MESSAGE(found, found.error().message);
  CHECK((*found)->job() == JobId(5));
  CHECK((*found)->rounds() == kRounds);
  CHECK((*found)->fits(JobId(5), NodeRank(1), layout(), {}));
  CHECK_FALSE((*found)->fits(JobId(6), NodeRank(1), layout(), {}));
  CHECK_FALSE((*found)->fits(JobId(5), NodeRank(0), layout(), {}));
  CHECK((*found)->kept().last == Round(3));
  CHECK(holds(**found, 2, 3));
  fill(**found, 2, 4);
  CHECK(holds(**found, 2, 4));
}

TEST_CASE("entries that cannot be are none") {
  const auto ring = ring_of();
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) fill(*ring, chunk, round);
  }
  const Scribbler scribbler(*ring);
  SUBCASE("the largest number, in a slot that it belongs to") {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) scribbler.round_of(chunk, 3) = ~0ull;
    CHECK(ring->kept().last == Round(4));
    CHECK(ring->kept().first == Round(4));
  }
  SUBCASE("a round of another slot") {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) scribbler.round_of(chunk, 2) = 9;
    CHECK(ring->kept().last == Round(4));
    CHECK(ring->kept().first == Round(3));
    CHECK_FALSE(ring->find(ChunkIndex(0), Round(9)));
  }
}

TEST_CASE("an entry that a trainer has damaged is not kept") {
  const auto ring = ring_of();
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    for (std::uint32_t chunk = 0; chunk < 3; ++chunk) {
      fill(*ring, chunk, round);
      ring->note_decision(Round(round), {GateVerdict::kApplied, 1.0, 2.0, 1.0f, 3});
    }
  }
  REQUIRE(ring->kept(true).last == Round(kRounds));
  const Scribbler scribbler(*ring);
  std::uint64_t* const entry = &scribbler.round_of(1, kRounds);  // round, weight, ...
  GateWord& word = *reinterpret_cast<GateWord*>(scribbler.decision_of(kRounds));
  SUBCASE("its weight is more than samples can be") {
    entry[1] = ~0ull;
  }
  SUBCASE("its round's verdict is none of ours") {
    word.verdict = 200;
  }
  SUBCASE("its round's coefficient is no number") {
    word.coefficient = std::nan("");
  }
  CHECK_FALSE(ring->find(ChunkIndex(1), Round(kRounds)));
  CHECK(ring->kept().last == Round(kRounds - 1));
  // A decision is that of all chunks.
  CHECK(ring->find(ChunkIndex(0), Round(kRounds)).has_value() == (entry[1] == ~0ull));
}

TEST_CASE("what is no ring of this node and model is refused in words") {
  const auto ring = ring_of();
  const auto why = [](const Result<std::shared_ptr<RedoRing>>& result) {
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::kMalformed);
    return result.error().message;
  };
  CHECK(testing::contains(why(RedoRing::adopt(copy_of(*ring), NodeRank(2), kTensors, {})), "node 1"));
  CHECK(why(RedoRing::adopt(copy_of(*ring), NodeRank(1), {{"w", {2501}}}, {})).find("another model") !=
        std::string::npos);
  CHECK(testing::contains(why(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, EncodingId::kBf16)), "encoding"));
  // Trainers write where the header is: whose ring it is was found out before.
  const Scribbler scribbler(*ring);
  const JobId job = ring->job();
  const std::uint64_t members = ring->members();
  std::vector<std::uint64_t> header(8);
  std::copy_n(scribbler.words, header.size(), header.begin());
  std::fill_n(scribbler.words, header.size(), ~0ull);
  CHECK(ring->job() == job);
  CHECK(ring->members() == members);
  CHECK(testing::contains(why(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, {})), "is none"));
  std::copy_n(header.begin(), header.size(), scribbler.words);
  CHECK(RedoRing::adopt(copy_of(*ring), NodeRank(1), kTensors, {}));

  auto foreign = required(SharedMemory::create(1 << 16, "a test", SharedMemory::Peers::kWrite));
  CHECK(why(RedoRing::adopt(FileDescriptor(::fcntl(foreign.fd(), F_DUPFD_CLOEXEC, 0)), NodeRank(1), kTensors, {}))
            .find("is none") != std::string::npos);
  // Without seals it could be made smaller under its reader.
  FileDescriptor open(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::ftruncate(open.get(), 1 << 16) == 0);
  CHECK(testing::contains(why(RedoRing::adopt(std::move(open), NodeRank(1), kTensors, {})), "sealed"));
}

}  // namespace tributary::redo_ring_test
