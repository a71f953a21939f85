// What the redo log keeps of one step of one chunk, in memory and on disk.
//
//     record = head of kRedoHead bytes | sum of the gradients, fp32 | padding to kRedoAlign
//
// A step writes the sum straight to its place behind a head that the writer fills in later, in a block of memory whose
// record begins at a multiple of kRedoAlign: so the record goes to the disk as it lies, without a copy of ours or the
// kernel's. The head has checksums of itself and of the sum, and a number: a log's records are numbered from its first
// one on without a gap, so that one that never reached the disk is missed.
//
// The sum is that of the decoded frames, before it is scaled. So a step that is taken again needs neither the push
// encoding nor the number of nodes, and gets the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/buffer_pool.h"
#include "common/config.h"
#include "common/gate_decision.h"
#include "common/ids.h"
#include "common/layout.h"
#include "common/redo_plan.h"

namespace tributary {

inline constexpr std::uint32_t kRedoFormat = 1;
inline constexpr std::size_t kRedoHead = 512, kRedoAlign = 4096;

constexpr std::size_t redo_record_bytes(std::size_t elements) {
  return (kRedoHead + elements * sizeof(float) + kRedoAlign - 1) / kRedoAlign * kRedoAlign;
}
// A block that holds a record wherever it begins.
constexpr std::size_t redo_block_bytes(std::size_t elements) {
  return redo_record_bytes(elements) + kRedoAlign;
}
std::byte* redo_record_in(const BufferRef& block);
inline float* redo_sum_in(const BufferRef& block) {
  return reinterpret_cast<float*>(redo_record_in(block) + kRedoHead);
}

// What a step depended on beside the state before it.
struct LoggedStep {
  JobId job;
  ViewId view;
  ChunkIndex chunk;
  Version version;         // after it
  std::uint64_t step = 0;  // after it; as before it: the round was void, and changed nothing but the version
  float scale = 0.0f;      // of the sum
  double lr = 0.0;
  GateDecision gate;         // jobs with a gate: what was decided about the round
  std::size_t elements = 0;  // of the sum; 0: void
  BufferRef block;           // the record
};

// The head, as it is on disk (little-endian).
struct RedoHead {
  static constexpr std::uint64_t kMagic = 0x6f64657262697274;  // "tribredo"
  static constexpr std::uint32_t kStep = 1, kCut = 2;
  std::uint64_t magic = kMagic;
  std::uint32_t format = kRedoFormat;
  std::uint32_t kind = kStep;  // kCut: what the log has of versions after `version` is void from here on
  std::uint64_t number = 0;
  std::uint64_t synced = 0;  // records below this number were durable when this one was written
  std::uint64_t job = 0;
  std::uint64_t version = 0, step = 0;
  double lr = 0.0;
  float scale = 0.0f;
  std::uint32_t view = 0, chunk = 0;
  std::uint32_t chunks = 0;  // that this server owns
  std::uint64_t elements = 0;
  double gate_coefficient = 0.0, gate_norm = 0.0;
  float gate_loss_scale = 1.0f;
  std::uint32_t gate_verdict = 0, gate_good_rounds = 0;
  std::uint32_t zero = 0;
  std::uint64_t sum_checksum = 0;
  std::uint64_t head_checksum = 0;  // last: of everything before it

  std::size_t record_bytes() const { return kind == kStep ? redo_record_bytes(elements) : kRedoAlign; }
};
static_assert(sizeof(RedoHead) <= kRedoHead);

// Fills in checksums and writes the head to the front of the record. The rest of the head's bytes become 0.
void seal(RedoHead head, std::span<const float> sum, std::byte* record);
// None if it is no head of this format, or damaged.
std::optional<RedoHead> unseal_redo_head(const std::byte* record);
bool sum_intact(const RedoHead& head, std::span<const float> sum);

// Rounds that the logs of all servers have room for within recovery.log_mb; 0: so few that none is kept, or none is
// wanted. At most `most`.
std::uint32_t log_rounds(const JobConfig& config, std::span<const ChunkOwner> owners, std::uint64_t chunk_elements,
                         std::uint32_t most = kMaxLoggedRounds);
// A log's files: so large that there are few, so small that much of it can be trimmed.
std::uint64_t redo_file_bytes(const JobConfig& config);

}  // namespace tributary
