#include "server/coordinator/cluster/coordinator_seat.h"

#include <algorithm>

namespace tributary {

CoordinatorSeat::CoordinatorSeat(const Options& options, Term known, std::uint64_t now_ms)
    : options_(options), term_(known), since_ms_(now_ms) {}

SeatReport CoordinatorSeat::report(std::uint64_t now_ms) const {
  SeatReport report{options_.place, term_, holder_, 0, {}};
  if (!holds() && holder_ != kNoShard) report.silent_ms = now_ms - holder_ms_;
  return report;
}

std::string CoordinatorSeat::holder_in_words() const {
  if (holder_ == kNoShard) return "";
  return "server " + std::to_string(holder_.value) + (admin_.empty() ? "" : " (http://" + admin_ + ")");
}

void CoordinatorSeat::learn(Term term) {
  if (holds() && before_ < term && term < term_) {
    unaware_ = true;
  } else if (term <= term_ || term.value - term_.value > kMostAhead) {
    return;
  } else {
    term_ = term;
  }
  state_ = State::kFollows;
  holder_ = kNoShard;
}

void CoordinatorSeat::on(const SeatReport& m, std::uint64_t now_ms) {
  if (m.place == options_.place || m.place.value >= options_.places) return;
  heard_[m.place.value] = now_ms;
  learn(m.term);
  if (m.term != term_) return;  // it lags
  // Others may remember this server's process of before, which is over.
  if (m.holder.value >= options_.places || m.holder == options_.place) return;
  const std::uint64_t heard_ms = now_ms - std::min(m.silent_ms, now_ms);
  holder_ms_ = holder_ == m.holder ? std::max(holder_ms_, heard_ms) : heard_ms;
  holder_ = m.holder;
  if (m.place == m.holder) admin_ = m.admin;
}

bool CoordinatorSeat::there(std::uint16_t place, std::uint64_t now_ms) const {
  const auto heard = heard_.find(place);
  return heard != heard_.end() && now_ms < heard->second + options_.timeout_ms;
}

std::uint64_t CoordinatorSeat::vacant_since() const {
  return std::max(since_ms_, holder_ == kNoShard ? 0 : holder_ms_ + options_.timeout_ms);
}

std::optional<Term> CoordinatorSeat::stand(std::uint64_t now_ms) {
  if (state_ != State::kFollows || now_ms < vacant_since()) return std::nullopt;
  const bool turns_over = now_ms >= vacant_since() + kTurns * options_.timeout_ms;
  for (std::uint16_t place = 0; place < options_.places; ++place) {
    if (place == options_.place.value) continue;
    const bool is_there = there(place, now_ms);
    // It may have the coordinator, and has yet to say so.
    if (!is_there && now_ms < since_ms_ + options_.timeout_ms) return std::nullopt;
    if (is_there && place < options_.place.value && !turns_over) return std::nullopt;
  }
  state_ = State::kStands;
  return next_term();
}

Term CoordinatorSeat::next_term() const {
  const std::uint64_t next = term_.value - term_.value % kMaxCoordinators + options_.place.value;
  return Term(next > term_.value ? next : next + kMaxCoordinators);
}

bool CoordinatorSeat::moved(const SeatTerms& kept, Term known, ShardIndex place) {
  const bool never = kept.owned == Term() && place != ShardIndex(0);
  return never || kept.owned != std::max(kept.promised, known);
}

std::map<std::uint16_t, std::uint64_t> CoordinatorSeat::last_heard(std::uint64_t now_ms) const {
  std::map<std::uint16_t, std::uint64_t> last = heard_;
  for (std::uint16_t place = 0; place < options_.places; ++place) {
    if (place != options_.place.value) last.try_emplace(place, std::min(since_ms_, now_ms));
  }
  if (holder_ != kNoShard && holder_ != options_.place) {
    last[holder_.value] = std::max(last[holder_.value], holder_ms_);
  }
  return last;
}

bool CoordinatorSeat::took(Term term, bool moved) {
  if (state_ != State::kStands || term <= term_) {
    state_ = State::kFollows;
    learn(term);  // it is on the disk
    return false;
  }
  before_ = moved ? term : term_;
  term_ = term;
  unaware_ = false;
  state_ = State::kHolds;
  holder_ = options_.place;
  admin_.clear();
  return true;
}

void CoordinatorSeat::failed(std::uint64_t now_ms) {
  if (state_ == State::kStands) state_ = State::kFollows;
  since_ms_ = now_ms + options_.timeout_ms;
}

void CoordinatorSeat::give_up(std::uint64_t now_ms) {
  state_ = State::kFollows;
  holder_ = kNoShard;
  since_ms_ = now_ms + 2 * kTurns * options_.timeout_ms;
}

}  // namespace tributary
