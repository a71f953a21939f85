// Choices among words in a configuration: enums with members in the order of their words. Files, JSON and messages have
// the words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tributary {

// local_sgd: replicas that take local steps between rounds; ssp, async: nodes do not wait for each other; allreduce:
// without servers
enum class Mode : std::uint8_t { kSync, kSsp, kAsync, kLocalSgd, kAllreduce };
inline constexpr std::string_view kModes[] = {"sync", "ssp", "async", "local_sgd", "allreduce"};
constexpr std::span<const std::string_view> words_of(Mode) {
  return kModes;
}

enum class ScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kStep };
inline constexpr std::string_view kSchedules[] = {"constant", "linear", "cosine", "step"};
constexpr std::span<const std::string_view> words_of(ScheduleKind) {
  return kSchedules;
}

// flat: a ring over all ranks; hierarchical: in the node, then over nodes
enum class AllreduceAlgorithm : std::uint8_t { kFlat, kHierarchical };
inline constexpr std::string_view kAllreduceAlgorithms[] = {"flat", "hierarchical"};
constexpr std::span<const std::string_view> words_of(AllreduceAlgorithm) {
  return kAllreduceAlgorithms;
}

// Lost nodes, or servers. wait: for them; continue: with those that are there
enum class OnLoss : std::uint8_t { kWait, kContinue };
inline constexpr std::string_view kOnLoss[] = {"wait", "continue"};
constexpr std::span<const std::string_view> words_of(OnLoss) {
  return kOnLoss;
}

// For a view's first round of which the ranks' own states are lost. continue: begin without them; rewind: begin at the
// last snapshot, which has them
enum class OnStateLost : std::uint8_t { kContinue, kRewind };
inline constexpr std::string_view kOnStateLost[] = {"continue", "rewind"};
constexpr std::span<const std::string_view> words_of(OnStateLost) {
  return kOnStateLost;
}

// Payloads to and from servers on a worker's machine: auto (in shared memory), socket
enum class LocalTransport : std::uint8_t { kAuto, kSocket };
inline constexpr std::string_view kLocalTransports[] = {"auto", "socket"};
constexpr std::span<const std::string_view> words_of(LocalTransport) {
  return kLocalTransports;
}

// Where gradients of ranks on GPUs are summed: auto (on the GPUs if they can), host, device (or the attach is refused)
enum class NodeReduction : std::uint8_t { kAuto, kHost, kDevice };
inline constexpr std::string_view kNodeReductions[] = {"auto", "host", "device"};
constexpr std::span<const std::string_view> words_of(NodeReduction) {
  return kNodeReductions;
}

// auto: with several devices; always: also with one
enum class NcclUse : std::uint8_t { kAuto, kAlways };
inline constexpr std::string_view kNcclUses[] = {"auto", "always"};
constexpr std::span<const std::string_view> words_of(NcclUse) {
  return kNcclUses;
}

// Payloads on connections to lanes, with keys: encrypt, or plain (connecting peers show a one-time token)
enum class PayloadSecurity : std::uint8_t { kEncrypt, kPlain };
inline constexpr std::string_view kPayloadSecurities[] = {"encrypt", "plain"};
constexpr std::span<const std::string_view> words_of(PayloadSecurity) {
  return kPayloadSecurities;
}

// Format of a log line
enum class LogFormat : std::uint8_t { kText, kJson };
inline constexpr std::string_view kLogFormats[] = {"text", "json"};
constexpr std::span<const std::string_view> words_of(LogFormat) {
  return kLogFormats;
}

template <class Choice>
concept IsChoice = std::is_enum_v<Choice> && requires(Choice choice) {
  words_of(choice);
};

template <IsChoice Choice>
std::string word(Choice choice) {
  return std::string(words_of(choice)[static_cast<std::size_t>(choice)]);
}

template <IsChoice Choice>
std::optional<Choice> choice_of(std::string_view text) {
  const std::span<const std::string_view> words = words_of(Choice{});
  const auto at = std::find(words.begin(), words.end(), text);
  if (at == words.end()) return std::nullopt;
  return static_cast<Choice>(at - words.begin());
}

// "a, b or c", with " or " as the last separator.
std::string join(std::span<const std::string_view> words, std::string_view last_separator);
// The fault of a word that is none of these: "must be ...".
std::string must_be_one_of(std::span<const std::string_view> words);

}  // namespace tributary
