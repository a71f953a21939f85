#include "worker/reduce/redo_ring.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <string>

#include "common/base/assert.h"
#include "common/base/round_up.h"
#include "common/base/weight.h"
#include "common/wire/messages.h"
#include "worker/reduce/node_gather.h"

namespace tributary {

// Both are read by other processes of the same release; the numbers say whether that holds.
struct RedoRing::Header {
  static constexpr std::uint64_t kMagic = 0x37303030'4f444552;  // "REDO0007"
  std::uint64_t magic = kMagic;
  std::uint64_t job = 0, layout_hash = 0, chunk_elements = 0;
  std::uint32_t node = 0, rounds = 0, push_id = 0, residuals = 0;
  std::uint64_t members = 0;
};

struct RedoRing::Entry {
  std::atomic<std::uint64_t> round{0};  // 0: nothing is there
  std::atomic<std::uint64_t> weight{0};
  std::atomic<std::uint32_t> says_settings{0};  // 0: all are as the job has them
  // Only in as many slots as there are residuals: the round after which the slot's residual is, plus 1; 0: none is there.
  std::atomic<std::uint64_t> residual{0};
};

namespace {

constexpr std::size_t kRingAlign = 64;
// The part of the tensors that ranks with these model ranks hold.
std::optional<Layout> part_of(const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements,
                              std::span<const std::uint32_t> model_ranks) {
  const auto whole = Layout::unowned(tensors, chunk_elements);
  return whole ? whole->part(model_ranks) : std::nullopt;
}

// No job has as many rounds: an entry with more is nonsense.
constexpr std::uint64_t kImpossibleRound = ~0ull / 2;

}  // namespace

RedoRing::Places::Places(const Layout& layout, EncodingSpec push, std::uint32_t rounds, std::uint32_t residual_count)
    : residuals(residual_count) {
  const auto encoding = make_encoding(push);
  const std::size_t slots = std::size_t{rounds} + 1;
  entries_at = round_up(sizeof(Header), kRingAlign) + round_up(slots * sizeof(GateWord), kRingAlign);
  begin = entries_at + round_up(layout.chunks() * slots * sizeof(Entry), kRingAlign);
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    groups.push_back(layout.groups_of(ChunkIndex(c)).size());
    settings_at.push_back(begin);
    begin += slots * groups.back() * sizeof(StepSettings);
  }
  begin = round_up(begin, kRingAlign);
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    frame_bytes.push_back(encoding->bytes(layout.chunk(ChunkIndex(c)).elements));
    frame_at.push_back(slot_bytes);
    slot_bytes += round_up(frame_bytes.back(), kRingAlign);
  }
  end = begin + slots * slot_bytes;
  if (!encoding->keeps_residual()) return;
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const std::size_t elements = layout.chunk(ChunkIndex(c)).elements;
    area_bytes.push_back(round_up(residual_offset(frame_bytes[c]) + elements * sizeof(float), kRingAlign));
    area_at.push_back(end);
    end += residuals * area_bytes.back();
  }
}

std::uint64_t RedoRing::bytes_needed(const Layout& layout, EncodingSpec push, std::uint32_t rounds,
                                     std::uint32_t residuals) {
  return Places(layout, push, rounds, residuals).end;
}

RedoRing::RedoRing(SharedMemory memory, JobId job, NodeRank node, std::uint64_t members, const Layout& layout,
                   EncodingSpec push, std::uint32_t rounds, Places places)
    : memory_(std::move(memory)),
      job_(job),
      node_(node),
      members_(members),
      layout_hash_(layout.hash()),
      chunk_elements_(layout.chunk_elements()),
      push_(push),
      rounds_(rounds),
      places_(std::move(places)) {
  TRIB_ASSERT(places_.end == memory_.size());
}

Result<std::shared_ptr<RedoRing>> RedoRing::create(JobId job, NodeRank node, const Layout& layout, EncodingSpec push,
                                                   std::uint32_t rounds, std::uint32_t residuals) {
  TRIB_ASSERT(rounds >= residuals && residuals >= kMinResidualRounds && residuals <= kMaxResidualRounds);
  Places places(layout, push, rounds, residuals);
  auto memory =
      SharedMemory::create(places.end, "the pushes that are kept for lost servers", SharedMemory::Peers::kWrite);
  if (!memory) return tl::unexpected(memory.error());
  auto* header = new (memory->data()) Header;
  header->job = job.value;
  header->layout_hash = layout.hash();
  header->chunk_elements = layout.chunk_elements();
  header->node = node.value;
  header->rounds = rounds;
  header->residuals = residuals;
  header->push_id = static_cast<std::uint32_t>(push.id);
  const std::shared_ptr<RedoRing> ring(
      new RedoRing(std::move(*memory), job, node, 0, layout, push, rounds, std::move(places)));
  new (&ring->decision(Round(0))) GateWord[ring->slots()];
  new (ring->entries()) Entry[layout.chunks() * std::size_t{ring->slots()}];
  for (std::uint32_t c = 0; c < ring->places_.area_at.size(); ++c) ring->publish_residual(ChunkIndex(c), Round(0));
  return ring;
}

Result<std::shared_ptr<RedoRing>> RedoRing::adopt(FileDescriptor fd, NodeRank node,
                                                  const std::vector<TensorSpec>& tensors, EncodingSpec push,
                                                  std::span<const std::uint32_t> model_ranks) {
  const auto foreign = [](const std::string& what) {
    return fail(ErrorCode::kMalformed, "what a trainer brought as the pushes of an earlier worker " + what);
  };
  auto memory = SharedMemory::map_kept(std::move(fd), "the pushes of an earlier worker");
  if (!memory) return tl::unexpected(memory.error());
  if (memory->size() < sizeof(Header)) return foreign("is too small");
  // A copy, which volatile makes one: trainers can write there while it is looked at.
  std::array<std::byte, sizeof(Header)> bytes;
  const volatile std::byte* const said = memory->data();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = said[i];
  const auto header = std::bit_cast<Header>(bytes);
  if (header.magic != Header::kMagic) return foreign("is none, or of another release");
  if (header.node != node.value) return foreign("is of node " + std::to_string(header.node));
  if (header.push_id != static_cast<std::uint32_t>(push.id)) return foreign("has another encoding");
  if (header.rounds == 0 || header.rounds > kMaxRedoRounds) return foreign("has an impossible number of rounds");
  if (header.residuals < kMinResidualRounds || header.residuals > kMaxResidualRounds) {
    return foreign("has residuals of an impossible number of rounds");
  }
  const std::optional<Layout> layout = part_of(tensors, header.chunk_elements, model_ranks);
  if (!layout || layout->hash() != header.layout_hash) return foreign("is of another model");
  Places places(*layout, push, header.rounds, header.residuals);
  if (places.end != memory->size()) return foreign("has another size than it says");
  return std::shared_ptr<RedoRing>(new RedoRing(std::move(*memory), JobId(header.job), node, header.members, *layout,
                                                push, header.rounds, std::move(places)));
}

RedoRing::Header& RedoRing::header() const {
  return *reinterpret_cast<Header*>(memory_.data());
}

GateWord& RedoRing::decision(Round round) const {
  return reinterpret_cast<GateWord*>(memory_.data() + round_up(sizeof(Header), kRingAlign))[round.value % slots()];
}

void* RedoRing::entries() const {
  return memory_.data() + places_.entries_at;
}

RedoRing::Entry& RedoRing::entry(ChunkIndex chunk, Round round) const {
  TRIB_ASSERT(chunk.value < places_.frame_at.size());
  return static_cast<Entry*>(entries())[std::size_t{chunk.value} * slots() + round.value % slots()];
}

RedoRing::Use RedoRing::use(const std::shared_ptr<RedoRing>& ring) {
  ring->users_.fetch_add(1, std::memory_order_relaxed);
  return {ring.get(), [ring](const void*) { ring->users_.fetch_sub(1, std::memory_order_release); }};
}

void RedoRing::set_members(std::uint64_t members) {
  members_ = members;
  header().members = members;
}

bool RedoRing::fits(JobId job, NodeRank node, const Layout& layout, EncodingSpec push) const {
  return job_ == job && node_ == node && layout_hash_ == layout.hash() && push_ == push;
}

bool RedoRing::is_of(NodeRank node, const std::vector<TensorSpec>& tensors,
                     std::span<const std::uint32_t> model_ranks) const {
  const std::optional<Layout> layout = part_of(tensors, chunk_elements_, model_ranks);
  return node_ == node && layout && layout->hash() == layout_hash_;
}

std::byte* RedoRing::frame(ChunkIndex chunk, Round round) {
  entry(chunk, round).round.store(0, std::memory_order_release);
  return memory_.data() + slot_offset(round) + places_.frame_at[chunk.value];
}

std::span<const std::byte> RedoRing::written(ChunkIndex chunk, Round round) const {
  TRIB_ASSERT(chunk.value < places_.frame_at.size());
  return {memory_.data() + slot_offset(round) + places_.frame_at[chunk.value], places_.frame_bytes[chunk.value]};
}

std::span<StepSettings> RedoRing::settings(ChunkIndex chunk, Round round) const {
  const std::size_t groups = places_.groups[chunk.value];
  auto* first = reinterpret_cast<StepSettings*>(memory_.data() + places_.settings_at[chunk.value]);
  return {first + round.value % slots() * groups, groups};
}

void RedoRing::publish(ChunkIndex chunk, Round round, std::uint64_t weight, SaidSettings said) {
  Entry& kept = entry(chunk, round);
  kept.round.store(0, std::memory_order_release);
  kept.says_settings.store(said.empty() ? 0 : 1, std::memory_order_relaxed);
  if (!said.empty()) std::ranges::copy(said, settings(chunk, round).begin());
  kept.weight.store(weight, std::memory_order_relaxed);
  kept.round.store(round.value, std::memory_order_release);
  entry(chunk, round.next()).round.store(0, std::memory_order_release);
}

void RedoRing::note_decision(Round round, const GateDecision& said) {
  GateWord& word = decision(round);
  if (said.known() && word.round.load(std::memory_order_relaxed) != round.value) word.write(round.value, said);
}

std::optional<RedoRing::Frame> RedoRing::find(ChunkIndex chunk, Round round) const {
  const Entry& kept = entry(chunk, round);
  if (round.value == 0 || kept.round.load(std::memory_order_acquire) != round.value) return {};
  // A copy is looked at: trainers can write here at any time, and a server refuses what cannot be.
  const bool says = kept.says_settings.load(std::memory_order_relaxed) != 0;
  const Frame frame{written(chunk, round), kept.weight.load(std::memory_order_relaxed),
                    decision(round).read(round.value), says ? SaidSettings(settings(chunk, round)) : SaidSettings()};
  if (frame.weight > kMaxWeight || !frame.gate.sound()) return {};
  return frame;
}

RedoRing::Range RedoRing::kept(bool decided) const {
  Range all{Round(1), Round(~0ull)};
  for (std::uint32_t c = 0; c < places_.frame_at.size(); ++c) {
    std::uint64_t last = 0;
    for (std::uint32_t slot = 0; slot < slots(); ++slot) {
      const Entry& kept = entry(ChunkIndex(c), Round(slot));
      const std::uint64_t round = kept.round.load(std::memory_order_acquire);
      if (decided && !decision(Round(round)).read(round).known()) continue;
      const bool sound = round % slots() == slot && round < kImpossibleRound && find(ChunkIndex(c), Round(round));
      if (sound) last = std::max(last, round);
    }
    std::uint64_t first = last + 1;
    const auto has = [&](Round round) {
      const std::optional<Frame> frame = find(ChunkIndex(c), round);
      return frame && (!decided || frame->gate.known());
    };
    while (first > 1 && last - first + 1 < rounds_ && has(Round(first - 1))) --first;
    all.first = std::max(all.first, Round(first));
    all.last = std::min(all.last, Round(last));
  }
  return places_.frame_at.empty() ? Range{} : all;
}

// Returns the word of the area that `round` uses in turn.
std::atomic<std::uint64_t>& RedoRing::residual_round(ChunkIndex chunk, Round round) const {
  return entry(chunk, Round(round.value % places_.residuals)).residual;
}

std::byte* RedoRing::area(ChunkIndex chunk, Round round) const {
  TRIB_ASSERT(chunk.value < places_.area_at.size());
  return memory_.data() + places_.area_at[chunk.value] +
         round.value % places_.residuals * places_.area_bytes[chunk.value];
}

void RedoRing::begin_residual(ChunkIndex chunk, Round round) {
  residual_round(chunk, round).store(0, std::memory_order_release);
}

void RedoRing::publish_residual(ChunkIndex chunk, Round round) {
  residual_round(chunk, round).store(round.value + 1, std::memory_order_release);
}

bool RedoRing::has_residual(ChunkIndex chunk, Round round) const {
  return residual_round(chunk, round).load(std::memory_order_acquire) == round.value + 1;
}

RedoRing::Range RedoRing::residuals() const {
  const auto all_have = [&](Round round) {
    for (std::uint32_t c = 0; c < places_.area_at.size(); ++c) {
      if (!has_residual(ChunkIndex(c), round)) return false;
    }
    return true;
  };
  Range found;
  if (places_.area_at.empty()) return found;
  for (std::uint32_t turn = 0; turn < places_.residuals; ++turn) {
    const std::uint64_t said = residual_round(ChunkIndex(0), Round(turn)).load(std::memory_order_acquire);
    if (said == 0 || said > kImpossibleRound || !all_have(Round(said - 1))) continue;
    if (found.last < found.first || Round(said - 1) > found.last) found = {Round(said - 1), Round(said - 1)};
  }
  if (found.last < found.first) return found;
  const auto count = [&] { return found.last.value - found.first.value + 1; };  // bounded: trainers can write meanwhile
  while (found.first.value > 0 && count() < places_.residuals && all_have(Round(found.first.value - 1))) {
    found.first = Round(found.first.value - 1);
  }
  return found;
}

void RedoRing::forget_after(Round round) {
  for (std::uint32_t slot = 0; slot < slots(); ++slot) {
    GateWord& word = decision(Round(slot));
    if (word.round.load(std::memory_order_relaxed) > round.value) word.round.store(GateWord::kNoRound);
  }
  for (std::uint32_t c = 0; c < places_.frame_at.size(); ++c) {
    for (std::uint32_t slot = 0; slot < slots(); ++slot) {
      Entry& kept = entry(ChunkIndex(c), Round(slot));
      if (kept.residual.load(std::memory_order_relaxed) > round.value + 1) kept.residual.store(0);
      if (kept.round.load(std::memory_order_relaxed) > round.value) kept.round.store(0, std::memory_order_release);
    }
  }
}

}  // namespace tributary
