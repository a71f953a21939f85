// ServerLaneTrace: a server lane's records of a traced job (docs/trace.md). Pure: times come as arguments. Thread rule:
// the lane's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/wire/data_messages.h"
#include "common/wire/trace_buffer.h"

namespace tributary {

class ServerLaneTrace {
 public:
  ServerLaneTrace(JobId job, ViewId view, std::size_t chunks, std::shared_ptr<TraceBuffer> buffer)
      : job_(job), view_(view), buffer_(std::move(buffer)), stepped_(chunks) {}

  bool is_of(JobId job) const { return job_ == job; }

  // A push has arrived. A step that it triggers begins now.
  void received(const Push& push, std::uint64_t now_ns) {
    begin_ns_ = now_ns;
    if (is_of(push.key)) {
      buffer_->record(TraceKind::kReceived, push.key.chunk, push.round, now_ns, now_ns, push.key.node.value);
    }
  }
  // A gate opens: chunks that wait for it are stepped from now on.
  void decided(std::uint64_t now_ns) { begin_ns_ = now_ns; }
  // The first answer of a round comes right behind its step; another one of the same round may be asked for later.
  void answered(const ChunkKey& key, Version version, std::uint64_t now_ns) {
    if (!is_of(key)) return;
    const Round round(version.value);
    std::uint64_t& stepped = stepped_[key.chunk.value];
    if (stepped < round.value) {
      stepped = round.value;
      buffer_->record(TraceKind::kStepped, key.chunk, round, begin_ns_, now_ns);
    }
    buffer_->record(TraceKind::kAnswered, key.chunk, round, now_ns, now_ns, key.node.value);
    begin_ns_ = now_ns;
  }

 private:
  bool is_of(const ChunkKey& key) const {
    return key.job == job_ && key.view == view_ && key.chunk.value < stepped_.size();
  }

  const JobId job_;
  const ViewId view_;
  const std::shared_ptr<TraceBuffer> buffer_;
  std::vector<std::uint64_t> stepped_;  // by chunk: the newest round
  std::uint64_t begin_ns_ = 0;
};

}  // namespace tributary
