#include "common/wire/codec_fields.h"

#include <cstring>

namespace tributary::codec {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint32_t load_u32(std::span<const std::byte> bytes, std::size_t offset) {
  std::uint32_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// First word of the root struct's data section. Cap'n Proto's framing: u32 segments - 1, u32 words of each segment,
// padding to a word, the segments; the first word of the first one is the pointer to the root struct.
std::optional<std::span<const std::byte>> root_data(std::span<const std::byte> bytes) {
  if (bytes.size() < 3 * kWord || bytes.size() % kWord != 0) return std::nullopt;
  const std::uint32_t extra_segments = load_u32(bytes, 0);
  if (extra_segments >= kMaxSegments) return std::nullopt;
  const std::size_t table = ((extra_segments + 1) / 2 + 1) * kWord;
  if (bytes.size() < table) return std::nullopt;
  std::uint64_t words = 0;
  for (std::uint32_t i = 0; i <= extra_segments; ++i) words += load_u32(bytes, 4 + 4 * i);
  if (table + words * kWord != bytes.size()) return std::nullopt;

  const auto first = bytes.subspan(table, load_u32(bytes, 4) * kWord);
  if (first.size() < 2 * kWord) return std::nullopt;
  const std::uint32_t low = load_u32(first, 0);
  if ((low & 3u) != 0) return std::nullopt;  // no struct
  const auto offset = static_cast<std::int32_t>(low) >> 2;
  const std::uint32_t data_words = load_u32(first, 4) & 0xffffu;
  const std::int64_t begin = 1 + static_cast<std::int64_t>(offset);
  if (data_words == 0 || begin < 0 || begin >= static_cast<std::int64_t>(first.size() / kWord)) return std::nullopt;
  return first.subspan(static_cast<std::size_t>(begin) * kWord, kWord);
}

}  // namespace

std::optional<std::uint32_t> peek_u32(std::span<const std::byte> bytes) {
  const auto data = root_data(bytes);
  if (!data) return std::nullopt;
  return load_u32(*data, 0);
}

std::optional<std::uint16_t> peek_u16(std::span<const std::byte> bytes) {
  const auto value = peek_u32(bytes);
  if (!value) return std::nullopt;
  return static_cast<std::uint16_t>(*value & 0xffffu);
}

Error refused(std::string_view kind, std::size_t bytes, const Malformed& why) {
  if (why.code != ErrorCode::kMalformed) return {why.code, "a " + std::string(kind) + " is refused: " + why.what};
  return {ErrorCode::kMalformed, "malformed " + std::string(kind) + " of " + std::to_string(bytes) +
                                     " bytes: " + why.what + "; the sender is no Tributary peer of protocol version " +
                                     std::to_string(kProtocolVersion) + ", or it has a bug"};
}

Status check_protocol(std::string_view kind, std::span<const std::byte> bytes, std::size_t max_bytes) {
  const auto version = peek_u16(bytes);
  if (!version) return tl::unexpected<Error>(refused(kind, bytes.size(), {"it is no complete Cap'n Proto message"}));
  if (*version != kProtocolVersion) {
    return fail(ErrorCode::kProtocolVersion, "the peer speaks protocol version " + std::to_string(*version) +
                                                 " in its " + std::string(kind) + ", this program speaks version " +
                                                 std::to_string(kProtocolVersion) +
                                                 "; install the same version of Tributary on both");
  }
  if (bytes.size() > max_bytes) {
    return tl::unexpected<Error>(
        refused(kind, bytes.size(), {"at most " + std::to_string(max_bytes) + " are allowed"}));
  }
  return {};
}

std::vector<std::byte> to_bytes(capnp::MessageBuilder& builder) {
  const auto segments = builder.getSegmentsForOutput();
  const std::size_t table = (segments.size() / 2 + 1) * kWord;
  std::size_t size = table;
  for (const auto& segment : segments) size += segment.size() * kWord;
  std::vector<std::byte> out(size);
  const auto put_u32 = [&](std::size_t offset, std::size_t value) {
    const auto narrow = static_cast<std::uint32_t>(value);
    std::memcpy(out.data() + offset, &narrow, sizeof(narrow));
  };
  put_u32(0, segments.size() - 1);
  std::size_t at = table;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    put_u32(4 + 4 * i, segments[i].size());
    std::memcpy(out.data() + at, segments[i].begin(), segments[i].size() * kWord);
    at += segments[i].size() * kWord;
  }
  return out;
}

std::string clipped(const std::string& value, std::size_t limit) {
  if (value.size() <= limit) return value;
  std::size_t end = limit;
  // Bytes 10xxxxxx continue a character; four bytes is the longest one.
  for (int i = 0; i < 3 && end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0u) == 0x80u; ++i) --end;
  return value.substr(0, end);
}

void write_owners(record::Layout::Builder out, const std::vector<ChunkOwner>& owners) {
  const auto count = static_cast<unsigned>(owners.size());
  auto shards = out.initOwnerShards(count);
  auto lanes = out.initOwnerLanes(count);
  for (unsigned i = 0; i < count; ++i) {
    shards.set(i, owners[i].shard.value);
    lanes.set(i, owners[i].lane.value);
  }
}

namespace {

void check(std::size_t size, const AtMost& most, const char* of) {
  if (size > most.count) {
    throw Malformed{std::string(most.what) + " has " + std::to_string(size) + of + ", at most " +
                    std::to_string(most.count) + " are allowed"};
  }
}

}  // namespace

void check_count(std::size_t count, const AtMost& most) {
  check(count, most, " entries");
}

std::string read_text(capnp::Text::Reader in, const AtMost& most) {
  check(in.size(), most, " bytes");
  return std::string(in.cStr(), in.size());
}

std::vector<std::byte> read_data(capnp::Data::Reader in, const AtMost& most) {
  check(in.size(), most, " bytes");
  const auto* bytes = reinterpret_cast<const std::byte*>(in.begin());
  return {bytes, bytes + in.size()};
}

std::vector<ChunkOwner> read_owners(record::Layout::Reader in) {
  const auto shards = in.getOwnerShards();
  const auto lanes = in.getOwnerLanes();
  if (shards.size() != lanes.size()) {
    throw Malformed{"the layout names " + std::to_string(shards.size()) + " shards but " +
                    std::to_string(lanes.size()) + " lanes as owners of chunks"};
  }
  std::vector<ChunkOwner> out;
  out.reserve(shards.size());
  for (unsigned i = 0; i < shards.size(); ++i) out.push_back({ShardIndex(shards[i]), LaneIndex(lanes[i])});
  return out;
}

}  // namespace tributary::codec
