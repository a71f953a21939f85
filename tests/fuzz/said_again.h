// Invariants of messages: one that decodes can be encoded again, and decodes to the same; any other is refused as its
// author's mistake.
#pragma once

#include "common/base/result.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/unit/common/wire/random_message.h"

namespace tributary::fuzz {

template <class Message>
void must_say_again(std::span<const std::byte> bytes, Result<Message> (*decode)(std::span<const std::byte>),
                    Bytes (*encode)(const Message&)) {
  const Result<Message> message = decode(bytes);
  if (!message) {
    const ErrorCode code = message.error().code;
    require(code == ErrorCode::kMalformed || code == ErrorCode::kProtocolVersion || code == ErrorCode::kUnknownKind,
            "a message is refused as its author's mistake");
    return;
  }
  const Result<Message> again = decode(encode(*message));
  require(again.has_value(), "what was understood is understood when it is said again");
  require(testing::same(*message, *again), "what is said again is the same");
}

template <class Message>
std::vector<Bytes> encoded(Bytes (*encode)(const Message&), std::size_t of_each = 1) {
  testing::Random random(1);
  std::vector<Bytes> all;
  for (std::size_t i = 0; i < of_each; ++i) {
    for (const Message& message : testing::one_of_each<Message>(random)) all.push_back(encode(message));
  }
  return all;
}

}  // namespace tributary::fuzz
