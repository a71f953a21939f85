#include "common/daemon/control_outbox.h"

#include <algorithm>
#include <type_traits>
#include <variant>
#include <vector>

namespace tributary {
namespace {

constexpr std::uint64_t kPlain = 256;  // bytes of a message without anything large in it, roughly

std::uint64_t bytes_of(const ControlMessage& message) {
  if (const auto* state = std::get_if<NodeRankState>(&message)) return kPlain + state->kept.state.size();
  if (const auto* address = std::get_if<PeerAddress>(&message)) return kPlain + address->value.size();
  if (const auto* part = std::get_if<StatePart>(&message)) return kPlain + part->data.size();
  if (const auto* values = std::get_if<RankValues>(&message)) return kPlain + values->shared.bytes();
  if (const auto* copy = std::get_if<JobRecordCopy>(&message)) return kPlain + copy->record.size();
  if (const auto* leave = std::get_if<LeaveJob>(&message)) return kPlain + leave->message.size();
  if (const auto* join = std::get_if<JoinJob>(&message)) {
    return kPlain + join->job_json.size() + kPlain * join->tensors.size();
  }
  return kPlain;
}

// Names a message by job and kind.
std::string in_words(const ControlMessage& message) {
  return std::visit(
      [](const auto& m) -> std::string {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, NodeRankState>) {
          return "what rank " + std::to_string(m.local_rank) + " of node " + std::to_string(m.node.value) +
                 " keeps for round " + std::to_string(m.kept.round.value) + " of the job with id " +
                 std::to_string(m.job.value);
        } else if constexpr (std::is_same_v<M, RankValues>) {
          return m.shared.key().in_words() + " of ranks of the job with id " + std::to_string(m.job.value);
        } else if constexpr (std::is_same_v<M, LeaveJob>) {
          return "that node " + std::to_string(m.node.value) + " leaves job '" + m.name + "'";
        } else if constexpr (std::is_same_v<M, JoinJob>) {
          return "a join of node " + std::to_string(m.node.value);
        } else if constexpr (std::is_same_v<M, PeerAddress>) {
          return "an address of the job with id " + std::to_string(m.job.value);
        } else {
          return "a message about this daemon";
        }
      },
      message);
}

bool same_rank(const NodeRankState& a, const NodeRankState& b) {
  return a.job == b.job && a.node == b.node && a.local_rank == b.local_rank;
}

}  // namespace

std::string ControlOutbox::push(const ControlMessage& message) {
  if (const auto* state = std::get_if<NodeRankState>(&message)) supersede(*state);
  if (const auto* values = std::get_if<RankValues>(&message)) supersede(*values);
  const std::uint64_t bytes = bytes_of(message);
  waiting_.push_back({++last_number_, message, bytes});
  bytes_ += bytes;
  return make_room();
}

void ControlOutbox::supersede(const NodeRankState& state) {
  std::vector<Place> older;
  for (Place at = waiting_.begin(); at != waiting_.end(); ++at) {
    const auto* other = std::get_if<NodeRankState>(&at->message);
    if (other && same_rank(*other, state)) older.push_back(at);
  }
  for (std::size_t i = 0; i + kStatesARank <= older.size(); ++i) erase(older[i]);
}

void ControlOutbox::supersede(const RankValues& values) {
  const auto same = std::ranges::find_if(waiting_, [&](const Waiting& one) {
    const auto* other = std::get_if<RankValues>(&one.message);
    return other && other->job == values.job && other->view == values.view &&
           other->shared.key() == values.shared.key();
  });
  if (same != waiting_.end()) erase(same);
}

std::string ControlOutbox::make_room() {
  std::string first;
  std::size_t others = 0;
  while (waiting_.size() > 1 && (waiting_.size() > kMaxMessages || bytes_ > kMaxBytes)) {
    Place least = std::ranges::find_if(
        waiting_, [](const Waiting& one) { return std::holds_alternative<NodeRankState>(one.message); });
    if (least == waiting_.end()) least = waiting_.begin();
    if (first.empty()) {
      first = in_words(least->message);
    } else {
      ++others;
    }
    erase(least);
  }
  if (others != 0) first += ", and " + std::to_string(others) + " more";
  return first;
}

void ControlOutbox::sent(std::uint64_t number) {
  if (!waiting_.empty() && waiting_.front().number == number) erase(waiting_.begin());
}

void ControlOutbox::erase(Place place) {
  bytes_ -= place->bytes;
  waiting_.erase(place);
}

}  // namespace tributary
