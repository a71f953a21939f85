#include "server/redo_record.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

namespace tributary {
namespace {

constexpr std::uint64_t kFilesOfLog = 16;
constexpr std::uint64_t kMinFileBytes = 1u << 20, kMaxFileBytes = 64u << 20;
// The oldest file may hold little that is still wanted, and the newest may be empty.
constexpr std::uint64_t kSpareFiles = 2;

std::uint64_t head_checksum(const RedoHead& head) {
  return XXH3_64bits(&head, offsetof(RedoHead, head_checksum));
}

}  // namespace

static_assert(std::endian::native == std::endian::little);
static_assert(std::has_unique_object_representations_v<std::uint64_t> && sizeof(RedoHead) == 136,
              "padding would be part of the checksum");

std::byte* redo_record_in(const BufferRef& block) {
  const auto at = reinterpret_cast<std::uintptr_t>(block.data());
  return block.data() + ((at + kRedoAlign - 1) / kRedoAlign * kRedoAlign - at);
}

void seal(RedoHead head, std::span<const float> sum, std::byte* record) {
  head.sum_checksum = XXH3_64bits(sum.data(), sum.size_bytes());
  head.head_checksum = head_checksum(head);
  std::memset(record, 0, kRedoHead);
  std::memcpy(record, &head, sizeof(head));
}

std::optional<RedoHead> unseal_redo_head(const std::byte* record) {
  RedoHead head;
  std::memcpy(&head, record, sizeof(head));
  if (head.magic != RedoHead::kMagic || head.format != kRedoFormat || head.head_checksum != head_checksum(head)) {
    return std::nullopt;
  }
  if (head.kind != RedoHead::kStep && head.kind != RedoHead::kCut) return std::nullopt;
  if (head.elements > kMaxChunkBytes / sizeof(float)) return std::nullopt;
  return head;
}

bool sum_intact(const RedoHead& head, std::span<const float> sum) {
  return head.sum_checksum == XXH3_64bits(sum.data(), sum.size_bytes());
}

std::uint64_t redo_file_bytes(const JobConfig& config) {
  return std::clamp((std::uint64_t{config.recovery.log_mb} << 20) / kFilesOfLog, kMinFileBytes, kMaxFileBytes);
}

std::uint32_t log_rounds(const JobConfig& config, std::span<const ChunkOwner> owners, std::uint64_t chunk_elements,
                         std::uint32_t most) {
  if (!logs_steps(config)) return 0;
  std::map<std::uint16_t, std::uint64_t> chunks;
  std::uint64_t largest = 0;
  for (const ChunkOwner& owner : owners) largest = std::max(largest, ++chunks[owner.shard.value]);
  const std::uint64_t round = largest * redo_record_bytes(chunk_elements);
  const std::uint64_t spare = kSpareFiles * std::max(redo_file_bytes(config), redo_record_bytes(chunk_elements));
  const std::uint64_t bound = std::uint64_t{config.recovery.log_mb} << 20;
  if (round == 0 || bound <= spare) return 0;
  const std::uint64_t fits = (bound - spare) / round;
  return fits < kMinRedoRounds ? 0 : static_cast<std::uint32_t>(std::min<std::uint64_t>(fits, most));
}

}  // namespace tributary
