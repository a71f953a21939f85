#include "common/base/result.h"

namespace tributary {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kInvalidArgument:
      return "invalid-argument";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kProtocolVersion:
      return "protocol-version";
    case ErrorCode::kMalformed:
      return "malformed";
    case ErrorCode::kUnknownJob:
      return "unknown-job";
    case ErrorCode::kUnknownChunk:
      return "unknown-chunk";
    case ErrorCode::kWrongLength:
      return "wrong-length";
    case ErrorCode::kStaleView:
      return "stale-view";
    case ErrorCode::kWrongRound:
      return "wrong-round";
    case ErrorCode::kLayoutMismatch:
      return "layout-mismatch";
    case ErrorCode::kConfigMismatch:
      return "config-mismatch";
    case ErrorCode::kTopology:
      return "topology";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kStore:
      return "store";
    case ErrorCode::kStoreFormat:
      return "store-format";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kStopped:
      return "stopped";
    case ErrorCode::kLimit:
      return "limit";
    case ErrorCode::kNotFound:
      return "not-found";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kUnknownKind:
      return "unknown-kind";
  }
  return "unknown-error-code";  // a number from a newer peer's message
}

}  // namespace tributary
