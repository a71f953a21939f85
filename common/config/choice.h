// Choices among words in a configuration: enums with members in the order of their words. Files, JSON and messages have
// the words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace tributary {

// The words of a choice, in the order of its members.
template <class Choice>
inline constexpr std::nullptr_t kWords = nullptr;

// local_sgd: replicas that take local steps between rounds; ssp, async: nodes do not wait for each other; allreduce:
// without servers
enum class Mode : std::uint8_t { kSync, kSsp, kAsync, kLocalSgd, kAllreduce };
template <>
inline constexpr std::string_view kWords<Mode>[] = {"sync", "ssp", "async", "local_sgd", "allreduce"};

enum class ScheduleKind : std::uint8_t { kConstant, kLinear, kCosine, kStep };
template <>
inline constexpr std::string_view kWords<ScheduleKind>[] = {"constant", "linear", "cosine", "step"};

// flat: a ring over all ranks; hierarchical: in the node, then over nodes
enum class AllreduceAlgorithm : std::uint8_t { kFlat, kHierarchical };
template <>
inline constexpr std::string_view kWords<AllreduceAlgorithm>[] = {"flat", "hierarchical"};

// Lost nodes, or servers. wait: for them; continue: with those that are there
enum class OnLoss : std::uint8_t { kWait, kContinue };
template <>
inline constexpr std::string_view kWords<OnLoss>[] = {"wait", "continue"};

// For a view's first round of which the ranks' own states are lost. continue: begin without them; rewind: begin at the
// last snapshot, which has them
enum class OnStateLost : std::uint8_t { kContinue, kRewind };
template <>
inline constexpr std::string_view kWords<OnStateLost>[] = {"continue", "rewind"};

// Payloads to and from servers on a worker's machine: auto (in shared memory), socket
enum class LocalTransport : std::uint8_t { kAuto, kSocket };
template <>
inline constexpr std::string_view kWords<LocalTransport>[] = {"auto", "socket"};

// Where gradients of ranks on GPUs are summed: auto (on the GPUs if they can), host, device (or the attach is refused)
enum class NodeReduction : std::uint8_t { kAuto, kHost, kDevice };
template <>
inline constexpr std::string_view kWords<NodeReduction>[] = {"auto", "host", "device"};

// auto: with several devices; always: also with one
enum class NcclUse : std::uint8_t { kAuto, kAlways };
template <>
inline constexpr std::string_view kWords<NcclUse>[] = {"auto", "always"};

// Payloads on connections to lanes, with keys: encrypt, or plain (connecting peers show a one-time token)
enum class PayloadSecurity : std::uint8_t { kEncrypt, kPlain };
template <>
inline constexpr std::string_view kWords<PayloadSecurity>[] = {"encrypt", "plain"};

// Format of a log line
enum class LogFormat : std::uint8_t { kText, kJson };
template <>
inline constexpr std::string_view kWords<LogFormat>[] = {"text", "json"};

template <class Choice>
concept IsChoice = std::is_array_v<decltype(kWords<Choice>)>;

template <IsChoice Choice>
constexpr std::span<const std::string_view> words_of(Choice) {
  return kWords<Choice>;
}

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
