// Result<T>: a value, or an Error whose message names the fault, its value and the cure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace tributary {

// Stable numbers: they travel in error messages on the wire. Append only.
enum class ErrorCode : std::uint16_t {
  kInternal = 0,         // our own mistake, reported instead of crashing
  kInvalidArgument = 1,  // a value that can never be right
  kConfig = 2,           // a configuration file's key or value
  kProtocolVersion = 3,  // the peer speaks another protocol version
  kMalformed = 4,        // bytes that are no message of ours
  kUnknownJob = 5,
  kUnknownChunk = 6,
  kWrongLength = 7,  // payload length does not fit the chunk and encoding
  kStaleView = 8,    // message of another membership (a zombie, or a peer that missed a restart)
  kWrongRound = 9,
  kLayoutMismatch = 10,  // tensors differ from those the job was opened with
  kConfigMismatch = 11,  // job configuration differs from the one the job was opened with
  kTopology = 12,        // rank, local_rank, world_size ... contradict each other or another member
  kIo = 13,
  kStore = 14,
  kStoreFormat = 15,  // the store was written by a newer format
  kTimeout = 16,
  kUnavailable = 17,  // the other side is not there (yet, or any more)
  kStopped = 18,      // the job was stopped cleanly
  kLimit = 19,        // a configured bound is reached
  kNotFound = 20,
  kDevice = 21,       // a GPU, or a library that drives it, failed at what the message names
  kUnknownKind = 22,  // a message of a kind that only newer programs know
};

std::string_view to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

}  // namespace tributary
