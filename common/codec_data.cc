#include <cstring>
#include <iterator>

#include "common/assert.h"
#include "common/codec.h"
#include "common/codec_util.h"
#include "schema/data.capnp.h"

namespace tributary {
namespace {

using Header = wire::DataHeader;

constexpr std::size_t kWord = sizeof(capnp::word);
constexpr std::size_t kSegmentTable = kWord;                                         // of a message of one segment
constexpr std::size_t kMaxErrorText = kMaxErrorHeader - kMaxDataHeader - 2 * kWord;  // and the header itself
constexpr std::string_view kKind = "data header";

static_assert(static_cast<int>(wire::Encoding::FP32) == static_cast<int>(EncodingId::kFp32));
static_assert(static_cast<int>(wire::Encoding::BF16) == static_cast<int>(EncodingId::kBf16));
static_assert(static_cast<int>(wire::Encoding::FP16) == static_cast<int>(EncodingId::kFp16));
static_assert(static_cast<int>(wire::Encoding::INT8) == static_cast<int>(EncodingId::kInt8));
static_assert(static_cast<int>(wire::Encoding::TOP_K) == static_cast<int>(EncodingId::kTopK));
static_assert(static_cast<int>(wire::Encoding::ONE_BIT) == static_cast<int>(EncodingId::kOneBit));
static_assert(static_cast<int>(wire::Encoding::INT8_DELTA) == static_cast<int>(EncodingId::kInt8Delta));
static_assert(static_cast<int>(wire::ResidualUse::BEHIND) == static_cast<int>(ResidualUse::kBehind));
static_assert(static_cast<int>(wire::ResidualUse::ALONE) == static_cast<int>(ResidualUse::kAlone));

void write_gate(Header::Builder out, const GateDecision& gate) {
  if (!gate.known()) return;
  out.setGateVerdict(static_cast<std::uint8_t>(gate.verdict));
  out.setGateScale(gate.loss_scale);
  out.setGateGood(gate.good_rounds);
  out.setGateCoefficient(gate.coefficient);
  out.setGateNorm(gate.norm);
}

GateDecision read_gate(Header::Reader in) {
  const GateVerdict verdict = codec::read_verdict(in.getGateVerdict());
  if (verdict == GateVerdict::kNone) return {};
  return codec::checked({verdict, in.getGateCoefficient(), in.getGateNorm(), in.getGateScale(), in.getGateGood()});
}

void write(Header::Builder out, const Push& m) {
  auto body = out.initPush();
  body.setRound(m.round.value);
  body.setWeight(m.weight);
  body.setEncoding(static_cast<wire::Encoding>(m.encoding));
  body.setResidual(static_cast<wire::ResidualUse>(m.residual));
  body.setLast(m.last);
  body.setRedo(m.redo);
  write_gate(out, m.gate);
}
void write(Header::Builder out, const Init&) {
  out.setInit();
}
void write(Header::Builder out, const Pull& m) {
  out.initPull().setVersion(m.version.value);
}
void write(Header::Builder out, const Query& m) {
  auto body = out.initQuery();
  body.setRound(m.round.value);
  body.setRedo(m.redo);
}
void write(Header::Builder out, const Receipt& m) {
  auto body = out.initReceipt();
  body.setRound(m.round.value);
  body.setResidualKept(m.residual_kept);
  body.setApplied(m.applied);
}
void write(Header::Builder out, const Answer& m) {
  auto body = out.initAnswer();
  body.setVersion(m.version.value);
  body.setEncoding(static_cast<wire::Encoding>(m.encoding));
  body.setSnapshotRound(m.snapshot_round.value);
  body.setResidualSent(m.residual_sent);
  body.setSlowest(m.slowest.value);
  write_gate(out, m.gate);
}
void write(Header::Builder out, const Residual& m) {
  out.initResidual().setVersion(m.version.value);
}
void write(Header::Builder out, const Resend& m) {
  out.initResend().setRound(m.round.value);
}
void write(Header::Builder out, const ErrorReply& m) {
  auto body = out.initError();
  body.setRound(m.round.value);
  body.setCode(static_cast<std::uint16_t>(m.code));
  body.setMessage(codec::text(codec::clipped(m.message, kMaxErrorText)));
}

EncodingId read_encoding(wire::Encoding in) {
  return codec::read_enum(in, EncodingId::kInt8Delta, "the encoding");
}

DataMessage read(Header::Reader in) {
  const ChunkKey key{JobId(in.getJob()), ViewId(in.getView()), NodeRank(in.getNode()), ChunkIndex(in.getChunk())};
  switch (in.which()) {
    case Header::PUSH: {
      const auto body = in.getPush();
      return Push{key,
                  Round(body.getRound()),
                  body.getWeight(),
                  read_encoding(body.getEncoding()),
                  codec::read_enum(body.getResidual(), ResidualUse::kAlone, "the use of the residual"),
                  body.getLast(),
                  body.getRedo(),
                  read_gate(in)};
    }
    case Header::INIT:
      return Init{key};
    case Header::PULL:
      return Pull{key, Version(in.getPull().getVersion())};
    case Header::QUERY:
      return Query{key, Round(in.getQuery().getRound()), in.getQuery().getRedo()};
    case Header::RECEIPT:
      return Receipt{key, Round(in.getReceipt().getRound()), in.getReceipt().getResidualKept(),
                     in.getReceipt().getApplied()};
    case Header::ANSWER: {
      const auto body = in.getAnswer();
      return Answer{key,
                    Version(body.getVersion()),
                    read_encoding(body.getEncoding()),
                    Round(body.getSnapshotRound()),
                    body.getResidualSent(),
                    Round(body.getSlowest()),
                    read_gate(in)};
    }
    case Header::RESIDUAL:
      return Residual{key, Version(in.getResidual().getVersion())};
    case Header::RESEND:
      return Resend{key, Round(in.getResend().getRound())};
    case Header::ERROR: {
      const auto body = in.getError();
      return ErrorReply{key, Round(body.getRound()), codec::read_error_code(body.getCode()),
                        codec::read_text(body.getMessage(), kMaxErrorHeader, "the error's message")};
    }
  }
  throw codec::Malformed{"its kind is " + std::to_string(static_cast<unsigned>(in.which())) +
                         ", which no known message has"};
}

// `Scratch` bytes on the stack hold the whole message, so that the builder never allocates a segment of its own.
template <std::size_t Scratch>
std::span<const std::byte> encode_within(const DataMessage& message, const PayloadPlace& place, std::uint16_t version,
                                         std::span<std::byte> out) {
  std::uint64_t scratch[(Scratch - kSegmentTable) / kWord] = {};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(reinterpret_cast<capnp::word*>(scratch), std::size(scratch)));
  auto header = builder.initRoot<Header>();
  header.setProtocol(version);
  header.setLink(place.link);
  header.setRegion(place.region);
  header.setOffset(place.offset);
  header.setBytes(place.bytes);
  header.setTicket(place.ticket);
  std::visit(
      [&](const auto& m) {
        header.setJob(m.key.job.value);
        header.setView(m.key.view.value);
        header.setNode(m.key.node.value);
        header.setChunk(m.key.chunk.value);
        write(header, m);
      },
      message);
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
  if (std::holds_alternative<ErrorReply>(message)) return encode_within<kMaxErrorHeader>(message, place, version, out);
  return encode_within<kMaxDataHeader>(message, place, version, out);
}

}  // namespace

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
    if (extra_segments != 0) throw codec::Malformed{"it has more than one segment"};
    const kj::ArrayPtr<const capnp::word> segment(reinterpret_cast<const capnp::word*>(aligned + 1),
                                                  bytes.size() / kWord - 1);
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1), codec::reader_options(segment.size()));
    const auto header = reader.getRoot<Header>();
    if (place != nullptr) {
      *place = {header.getLink(), header.getRegion(), header.getOffset(), header.getBytes(), header.getTicket()};
    }
    return read(header);
  });
  return std::move(decoded).map_error(
      [&](const std::string& why) { return codec::malformed(kKind, bytes.size(), why); });
}

}  // namespace tributary
