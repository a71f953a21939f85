// What a lane does with messages: from the socket to the job's core, and back.
#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/assert.h"
#include "common/clock.h"
#include "common/codec.h"
#include "common/zmq_util.h"
#include "server/lane.h"

namespace tributary {

bool Lane::receive_batch() {
  for (int i = 0; i < kBatch; ++i) {
    zmq::message_t frames[3];  // routing id, header, payload
    Received message;
    message.frames = receive_frames(socket_, frames) - 1;
    if (message.frames < 1) return false;  // a ROUTER's routing id is always followed by a frame
    message.header = &frames[1];
    message.payload = &frames[2];
    counters_.messages.add();
    const Result<PeerId> from = peer_from_routing_id(bytes_of(frames[0]));
    if (!from) {
      counters_.malformed.add();
      noise_.warn(from.error().message, steady_ms());
      send(std::move(frames[0]), ErrorReply{{}, {}, from.error().code, from.error().message});
      continue;
    }
    try {
      handle(*from, message);
    } catch (const std::exception& e) {  // no memory, most likely: the sender hears of it, everybody else goes on
      counters_.internal_errors.add();
      refuse(*from, {}, {}, ErrorCode::kInternal, std::string("the server could not handle the message: ") + e.what());
    }
    dirty_ = true;
  }
  return true;
}

void Lane::handle(PeerId from, Received& message) {
  Result<DataMessage> decoded = decode_data(bytes_of(*message.header), &message.place);
  if (!decoded) {
    counters_.malformed.add();
    noise_.warn("refused a message: " + decoded.error().message, steady_ms());
    return refuse(from, {}, {}, decoded.error().code, std::move(decoded.error().message));
  }
  std::visit([&](const auto& m) { dispatch(from, m, message); }, *decoded);
}

template <class M>
void Lane::dispatch(PeerId from, const M& message, Received& received) {
  constexpr bool kWithPayload = std::is_same_v<M, Push> || std::is_same_v<M, Init>;
  constexpr bool kToServer = kWithPayload || std::is_same_v<M, Pull> || std::is_same_v<M, Query>;
  Round round{};
  if constexpr (requires { message.round; }) round = message.round;
  if constexpr (!kToServer) {
    counters_.malformed.add();
    noise_.warn("refused a message that only servers send", steady_ms());
    // An error is never answered with an error: two who misunderstand each other would go on for ever.
    if constexpr (!std::is_same_v<M, ErrorReply>) {
      refuse(
          from, message.key, round, ErrorCode::kMalformed,
          "answers, receipts and resends come from servers; a client sends pushes, initial values, pulls and queries");
    }
  } else {
    const bool in_memory = received.place.bytes != 0;
    const int frames = kWithPayload && !in_memory ? 2 : 1;
    if (received.frames != frames || (in_memory && !kWithPayload)) {
      counters_.malformed.add();
      noise_.warn("refused a message of " + std::to_string(received.frames) + " frames", steady_ms());
      return refuse(from, message.key, round, ErrorCode::kMalformed,
                    "the message has " + std::to_string(received.frames) + " frames instead of " +
                        std::to_string(frames) +
                        (kWithPayload && !in_memory ? " (header and payload)" : " (a header without payload)"));
    }
    const auto found = jobs_.find(message.key.job);
    if (found == jobs_.end()) {
      counters_.unknown_job.add();
      noise_.warn("refused a message for job " + std::to_string(message.key.job.value) + ", which is not open here",
                  steady_ms());
      return refuse(from, message.key, round, ErrorCode::kUnknownJob,
                    "job " + std::to_string(message.key.job.value) + " is not open on server " +
                        std::to_string(options_.shard.value) + " lane " + std::to_string(options_.lane.value) +
                        "; attach through the worker, which learns from the coordinator where a job's chunks are");
    }
    ShardCore& core = *found->second.core;
    ++found->second.said;
    // A message of another view is the core's to refuse, which does not look at what it brings.
    if (received.place.link != 0 && message.key.view == core.job().view) {
      if (Status bound = links_.bind(from, message.key, received.place); !bound) {
        counters_.malformed.add();
        noise_.warn("refused a message: " + bound.error().message, steady_ms());
        return refuse(from, message.key, round, bound.error().code, std::move(bound.error().message));
      }
    }
    if constexpr (kWithPayload) {
      Payload payload;
      if (message.key.view == core.job().view) {
        bool copy = false;
        if constexpr (std::is_same_v<M, Push>) copy = message.residual != ResidualUse::kNone;
        auto taken = take_payload(received, copy);
        if (!taken) {
          counters_.malformed.add();
          noise_.warn("refused a message: " + taken.error().message, steady_ms());
          return refuse(from, message.key, round, taken.error().code, std::move(taken.error().message));
        }
        payload = std::move(*taken);
      }
      if constexpr (std::is_same_v<M, Push>) core.on_push(from, message, std::move(payload));
      if constexpr (std::is_same_v<M, Init>) core.on_init(from, message, payload.bytes());
    }
    if constexpr (std::is_same_v<M, Pull>) core.on_pull(from, message);
    if constexpr (std::is_same_v<M, Query>) core.on_query(from, message);
  }
}

// copy: it may be held beyond the answer (a residual, by a snapshot), when its author writes there again.
Result<Payload> Lane::take_payload(Received& received, bool copy) {
  if (received.place.bytes == 0) {
    counters_.socket_payload_bytes.add(received.payload->size());
    return to_payload(std::move(*received.payload));
  }
  Result<Payload> payload = links_.payload(received.place);
  if (!payload) return payload;
  counters_.shared_payload_bytes.add(payload->bytes().size());
  if (!copy) return payload;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(payload->bytes().size());
  std::ranges::copy(payload->bytes(), memory.get());
  const std::span<const std::byte> bytes(memory.get(), payload->bytes().size());
  return Payload(std::move(memory), bytes);
}

Result<LaneLinks::Shared> Lane::find_pool(const LinkRequest& request) {
  const auto found = jobs_.find(request.job);
  if (found == jobs_.end() || found->second.core->job().view != request.view ||
      request.node.value >= found->second.core->job().nodes) {
    return fail(ErrorCode::kUnknownJob, "job " + std::to_string(request.job.value) + " with node " +
                                            std::to_string(request.node.value) + " in view " +
                                            std::to_string(request.view.value) + " is not open here");
  }
  return LaneLinks::Shared{found->second.pool.get(), found->second.core->chunks()};
}

void Lane::refuse(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message) {
  send(routing_id_of(from), ErrorReply{key, round, code, std::move(message)});
}

// A dropped answer is not lost for good: the client queries what is overdue, and is answered again.
bool Lane::send(zmq::message_t routing_id, const DataMessage& message, std::optional<zmq::message_t> payload,
                const PayloadPlace& place) {
  if (!send_now(socket_, routing_id, true)) {
    const bool full = zmq_errno() == EAGAIN;
    (full ? counters_.dropped_full : counters_.dropped_unreachable).add();
    noise_.warn(full ? "dropped an answer: its receiver takes nothing" : "dropped an answer: its receiver is gone",
                steady_ms());
    return false;
  }
  alignas(8) std::byte scratch[kMaxErrorHeader];
  const std::span<const std::byte> bytes = encode_data(message, scratch, place);
  zmq::message_t header(bytes.data(), bytes.size());
  // Once a ROUTER has taken the routing id it takes (or drops) the rest of the message.
  bool sent = send_now(socket_, header, payload.has_value());
  if (payload) sent = send_now(socket_, *payload, false) && sent;
  TRIB_ASSERT(sent);
  return true;
}

// To a worker that shares memory only the place, with a share in what lies there.
void Lane::send_values(PeerId to, const DataMessage& message, const ChunkKey& key, const BufferRef& values) {
  const std::optional<PayloadPlace> place = links_.tell(to, key, values);
  if (!place) return;
  if (place->bytes == 0) {
    counters_.socket_payload_bytes.add(values.size());
    send(routing_id_of(to), message, borrow(values, values.size()));
  } else {
    counters_.shared_payload_bytes.add(values.size());
    send(routing_id_of(to), message, {}, *place);
  }
}

void Lane::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  send_values(to, header, header.key, payload);
}
void Lane::residual(PeerId to, const Residual& header, const BufferRef& values) {
  send_values(to, header, header.key, values);
}
void Lane::receipt(PeerId to, const Receipt& header) {
  send(routing_id_of(to), header);
}
void Lane::resend(PeerId to, const Resend& header) {
  send(routing_id_of(to), header);
}

void Lane::error(PeerId to, const ErrorReply& header) {
  noise_.warn("refused: " + header.message, steady_ms());
  send(routing_id_of(to), header);
}

}  // namespace tributary
