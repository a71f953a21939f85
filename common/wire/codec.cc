#include "common/wire/codec.h"

#include <cstring>
#include <iterator>

#include "common/base/assert.h"
#include "common/wire/codec_fields.h"
#include "schema/attach.capnp.h"
#include "schema/control.capnp.h"
#include "schema/data.capnp.h"

namespace tributary {
namespace {

using Header = wire::DataHeader;

constexpr std::size_t kWord = sizeof(capnp::word);
constexpr std::size_t kSegmentTable = kWord;                                   // of a message of one segment
static_assert(kMaxErrorText == kMaxErrorHeader - kMaxDataHeader - 2 * kWord);  // and the header itself
constexpr std::string_view kKind = "data header";

static_assert(static_cast<int>(wire::ResidualUse::BEHIND) == static_cast<int>(ResidualUse::kBehind));
static_assert(static_cast<int>(wire::ResidualUse::ALONE) == static_cast<int>(ResidualUse::kAlone));
static_assert(static_cast<int>(wire::LeaveKind::FINISHED) == static_cast<int>(LeaveKind::kFinished));
static_assert(static_cast<int>(wire::LeaveKind::STOPPED) == static_cast<int>(LeaveKind::kStopped));
static_assert(static_cast<int>(wire::LeaveKind::FAILED) == static_cast<int>(LeaveKind::kFailed));
static_assert(static_cast<int>(wire::LeaveKind::FINISHES_ALL) == static_cast<int>(LeaveKind::kFinishesAll));
static_assert(static_cast<int>(wire::StopKind::FINISHED) == static_cast<int>(StopKind::kFinished));
static_assert(static_cast<int>(wire::StopKind::STOPPED) == static_cast<int>(StopKind::kStopped));
static_assert(static_cast<int>(wire::StopKind::RESTART) == static_cast<int>(StopKind::kRestart));

// Fields of the messages with a gate's decision.
void gate_fields(auto& gate, auto&& field) {
  field(gate.verdict, TRIB_WIRE(GateVerdict));
  field(gate.loss_scale, TRIB_WIRE(GateScale));
  field(gate.good_rounds, TRIB_WIRE(GateGood));
  field(gate.coefficient, TRIB_WIRE(GateCoefficient));
  field(gate.norm, TRIB_WIRE(GateNorm));
}

template <class M>
M read(Header::Reader header) {
  M message = codec::read_message<M>(header);
  const codec::Reader field(header);
  ChunkKey::fields(message.key, field);
  if constexpr (requires { message.gate; }) {
    gate_fields(message.gate, field);
    message.gate.check();
  }
  return message;
}

// message: by value, so that the compiler knows that stores into the header change nothing of it.
template <class M>
void write(Header::Builder header, const M message) {
  const codec::Writer field(header);
  ChunkKey::fields(message.key, field);
  if constexpr (requires { message.gate; }) {
    if (message.gate.known()) gate_fields(message.gate, field);
  }
  codec::write_message(header, message);
}

// `Scratch` bytes on the stack hold the whole message, so that the builder never allocates a segment of its own.
template <std::size_t Scratch>
std::span<const std::byte> encode_within(const DataMessage& message, PayloadPlace place, std::uint16_t version,
                                         std::span<std::byte> out) {
  std::uint64_t scratch[(Scratch - kSegmentTable) / kWord] = {};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(reinterpret_cast<capnp::word*>(scratch), std::size(scratch)));
  auto header = builder.initRoot<Header>();
  header.setProtocol(version);
  PayloadPlace::fields(place, codec::Writer(header));
  std::visit([&](const auto& m) { write(header, m); }, message);
  const auto segments = builder.getSegmentsForOutput();
  TRIB_ASSERT(segments.size() == 1);
  const std::size_t size = kSegmentTable + segments[0].size() * kWord;
  TRIB_ASSERT(size <= Scratch && size <= out.size());
  const std::uint32_t table[2] = {0, static_cast<std::uint32_t>(segments[0].size())};
  std::memcpy(out.data(), table, sizeof(table));
  std::memcpy(out.data() + sizeof(table), segments[0].begin(), segments[0].size() * kWord);
  return out.first(size);
}

std::span<const std::byte> encode(const DataMessage& message, const PayloadPlace& place, std::uint16_t version,
                                  std::span<std::byte> out) {
  const Push* push = std::get_if<Push>(&message);
  const bool long_one = std::holds_alternative<ErrorReply>(message) || (push != nullptr && !push->settings.empty());
  if (long_one) return encode_within<kMaxErrorHeader>(message, place, version, out);
  return encode_within<kMaxDataHeader>(message, place, version, out);
}

}  // namespace

// ---- The data path ----

std::span<const std::byte> encode_data(const DataMessage& message, std::span<std::byte> out,
                                       const PayloadPlace& place) {
  TRIB_ASSERT(out.size() >= kMaxErrorHeader);
  return encode(message, place, kProtocolVersion, out);
}

std::vector<std::byte> encode_data_as_version(const DataMessage& message, std::uint16_t version) {
  std::vector<std::byte> out(kMaxErrorHeader);
  out.resize(encode(message, {}, version, out).size());
  return out;
}

Result<DataMessage> decode_data(std::span<const std::byte> bytes, PayloadPlace* place) {
  if (auto status = codec::check_protocol(kKind, bytes, kMaxErrorHeader); !status) {
    return tl::unexpected<Error>(std::move(status.error()));
  }
  std::uint64_t aligned[kMaxErrorHeader / kWord];
  std::memcpy(aligned, bytes.data(), bytes.size());
  auto decoded = codec::decode_guarded<DataMessage>([&]() -> DataMessage {
    std::uint32_t extra_segments;
    std::memcpy(&extra_segments, aligned, sizeof(extra_segments));
    if (extra_segments != 0) throw Malformed{"it has more than one segment"};
    const kj::ArrayPtr<const capnp::word> segment(reinterpret_cast<const capnp::word*>(aligned + 1),
                                                  bytes.size() / kWord - 1);
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1), codec::reader_options(segment.size()));
    const auto header = reader.getRoot<Header>();
    if (place != nullptr) PayloadPlace::fields(*place, codec::Reader(header));
    return codec::read_kind<DataMessage>(
        header.which(), [&]<class M>(std::in_place_type_t<M>) -> DataMessage { return read<M>(header); });
  });
  return std::move(decoded).map_error([&](const Malformed& why) { return codec::refused(kKind, bytes.size(), why); });
}

// ---- Control, and trainers ----

std::vector<std::byte> encode_control_as_version(const ControlMessage& message, std::uint16_t version) {
  return codec::encode_message<wire::ControlMessage>(message, version);
}

std::vector<std::byte> encode_control(const ControlMessage& message) {
  return encode_control_as_version(message, kProtocolVersion);
}

Result<ControlMessage> decode_control(std::span<const std::byte> bytes) {
  return codec::decode_message<wire::ControlMessage, ControlMessage>("control message", bytes, kMaxControlBytes);
}

std::vector<std::byte> encode_attach_as_version(const AttachMessage& message, std::uint16_t version) {
  return codec::encode_message<wire::AttachMessage>(message, version);
}

std::vector<std::byte> encode_attach(const AttachMessage& message) {
  return encode_attach_as_version(message, kProtocolVersion);
}

Result<AttachMessage> decode_attach(std::span<const std::byte> bytes) {
  return codec::decode_message<wire::AttachMessage, AttachMessage>("attach message", bytes, kMaxAttachBytes);
}

}  // namespace tributary
