// Messages of a lane: to the job's core, and back.
#include <algorithm>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>

#include "server/lane/lane_jobs.h"

namespace tributary {
namespace {

Payload copy_of(std::span<const std::byte> bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
  std::ranges::copy(bytes, memory.get());
  const std::span<std::byte> own(memory.get(), bytes.size());
  return Payload::alone(std::move(memory), own);
}

}  // namespace

void LaneJobs::receive(PeerId from, const DataMessage& message, Received received) {
  dirty_ = true;
  std::visit([&](const auto& m) { dispatch(from, m, received); }, message);
}

template <class M>
void LaneJobs::dispatch(PeerId from, const M& message, Received& received) {
  constexpr bool kWithPayload = std::is_same_v<M, Push> || std::is_same_v<M, Init>;
  constexpr bool kToServer = kWithPayload || std::is_same_v<M, Pull> || std::is_same_v<M, Query>;
  Round round{};
  if constexpr (requires { message.round; }) round = message.round;
  if constexpr (!kToServer) {
    counters_.malformed.add();
    output_.refused("refused a message that only servers send");
    // An error is never answered with an error: two peers that misunderstand each other would continue forever.
    if constexpr (!std::is_same_v<M, ErrorReply>) {
      refuse(from, message.key, round, ErrorCode::kMalformed,
             "answers, acks and resends come from servers; a client sends pushes, initial values, pulls and queries");
    }
  } else {
    const bool in_memory = received.place.bytes != 0;
    const int frames = kWithPayload && !in_memory ? 2 : 1;
    if (received.frames != frames || (in_memory && !kWithPayload)) {
      counters_.malformed.add();
      output_.refused("refused a message of " + std::to_string(received.frames) + " frames");
      return refuse(from, message.key, round, ErrorCode::kMalformed,
                    "the message has " + std::to_string(received.frames) + " frames instead of " +
                        std::to_string(frames) +
                        (kWithPayload && !in_memory ? " (header and payload)" : " (a header without payload)"));
    }
    const auto found = jobs_.find(message.key.job);
    if (found == jobs_.end()) {
      counters_.unknown_job.add();
      output_.refused("refused a message for job " + std::to_string(message.key.job.value) +
                      ", which is not open here");
      return refuse(from, message.key, round, ErrorCode::kUnknownJob,
                    "job " + std::to_string(message.key.job.value) + " is not open on server " +
                        std::to_string(options_.shard.value) + " lane " + std::to_string(options_.lane.value) +
                        "; attach through the worker, which learns from the coordinator where a job's chunks are");
    }
    ShardCore& core = *found->second.core;
    if constexpr (std::is_same_v<M, Push>) {
      if (trace_) trace_->received(message, output_.now_ns());
    }
    if (message.key.view == core.job().view->view) ++found->second.said;
    // A message of another view is the core's to refuse, which does not look at what it brings.
    if (received.place.link != 0 && message.key.view == core.job().view->view) {
      if (Status bound = told_.bind(from, message.key, received.place); !bound) {
        return refuse_malformed(from, message.key, round, std::move(bound.error()));
      }
    }
    if constexpr (kWithPayload) {
      if (!received.payload && message.key.view != core.job().view->view) received.payload = Payload();
      if (!received.payload) return refuse_malformed(from, message.key, round, std::move(received.payload.error()));
      Payload payload = std::move(*received.payload);
      (in_memory ? counters_.shared_payload_bytes : counters_.socket_payload_bytes).add(payload.bytes().size());
      if constexpr (std::is_same_v<M, Push>) {
        // A residual may be held beyond the answer, when its author writes there again.
        if (in_memory && message.residual != ResidualUse::kNone) payload = copy_of(payload.bytes());
        core.on_push(from, message, std::move(payload));
      }
      if constexpr (std::is_same_v<M, Init>) core.on_init(from, message, payload.bytes());
    }
    if constexpr (std::is_same_v<M, Pull>) core.on_pull(from, message);
    if constexpr (std::is_same_v<M, Query>) core.on_query(from, message);
  }
}

Result<LaneJobs::Shared> LaneJobs::shared(const LinkRequest& request) const {
  const auto found = jobs_.find(request.job);
  if (found == jobs_.end() || found->second.core->job().view->view != request.view ||
      request.node.value >= found->second.core->job().view->nodes) {
    return fail(ErrorCode::kUnknownJob, "job " + std::to_string(request.job.value) + " with node " +
                                            std::to_string(request.node.value) + " in view " +
                                            std::to_string(request.view.value) + " is not open here");
  }
  return Shared{found->second.pool, found->second.core->chunks()};
}

void LaneJobs::refuse_malformed(PeerId from, const ChunkKey& key, Round round, Error error) {
  counters_.malformed.add();
  output_.refused("refused a message: " + error.message);
  refuse(from, key, round, error.code, std::move(error.message));
}

void LaneJobs::refuse(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message) {
  output_.send(from, ErrorReply{key, round, code, std::move(message)}, {}, {});
}

// To a worker that shares memory only the place, with a share in what lies there.
void LaneJobs::send_values(PeerId to, const DataMessage& message, const ChunkKey& key, const BufferRef& values) {
  const std::optional<PayloadPlace> place = told_.tell(to, key, values);
  if (!place) return;
  (place->bytes == 0 ? counters_.socket_payload_bytes : counters_.shared_payload_bytes).add(values.size());
  output_.send(to, message, values, *place);
}

void LaneJobs::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  if (trace_) trace_->answered(header.key, header.version, output_.now_ns());
  if (header.same) return output_.send(to, header, {}, {});
  send_values(to, header, header.key, payload);
}
void LaneJobs::residual(PeerId to, const Residual& header, const BufferRef& values) {
  send_values(to, header, header.key, values);
}
void LaneJobs::ack(PeerId to, const Ack& header) {
  output_.send(to, header, {}, {});
}
void LaneJobs::resend(PeerId to, const Resend& header) {
  output_.send(to, header, {}, {});
}
void LaneJobs::error(PeerId to, const ErrorReply& header) {
  output_.refused("refused: " + header.message);
  output_.send(to, header, {}, {});
}
void LaneJobs::captured(ChunkSnapshot snapshot) {
  listener_.lane_captured(std::move(snapshot));
}
void LaneJobs::facts(const RoundFacts& facts) {
  listener_.lane_facts(options_.lane, facts);
}

}  // namespace tributary
