// CoordinatorChoice: with which of the servers that may have the coordinator a daemon speaks (docs/failover.md). Pure. A
// part of the daemon's link, and of the simulator's.
//
// A daemon stays where its hello was answered until that coordinator is silent for too long, or has gone elsewhere. Then
// the daemon tries one after the other. A server never obeys a coordinator of a lower term than one that it has obeyed.
// (Two coordinators cannot both open a view of a job, so workers need not care.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/wire/messages.h"

namespace tributary {

class CoordinatorChoice {
 public:
  static constexpr std::uint64_t kTryMs = 2000;  // at one that does not answer, or has no coordinator, at least

  // places: how many may have it. timeout_ms: a coordinator that is silent for so long is lost. promised: the highest
  // term that this server has obeyed; none: it is a worker.
  CoordinatorChoice(std::size_t places, std::uint64_t timeout_ms, std::optional<Term> promised)
      : places_(places), timeout_ms_(timeout_ms), promised_(promised) {}

  std::size_t at() const { return at_; }
  bool several() const { return places_ > 1; }
  Term promised() const { return promised_.value_or(Term()); }

  // A coordinator answers the hello. False: another one has taken its place, and it does not know that yet.
  bool obeys(Term term) {
    if (term < promised()) return false;
    if (promised_) promised_ = term;
    return true;
  }
  // The one that was asked has no coordinator. Returns whether the daemon is to go to at() now, which is another.
  bool elsewhere(const SeatReport& m, std::uint64_t now_ms) {
    const bool knows = m.holder.value < places_ && m.holder.value != at_ && m.silent_ms < timeout_ms_;
    if (!knows || m.term < promised()) return false;
    return go(m.holder.value, now_ms);
  }
  // The coordinator is silent for too long, or is not to be obeyed. Returns as elsewhere().
  bool leave(std::uint64_t now_ms) { return several() && go((at_ + 1) % places_, now_ms); }
  // As long as no hello is answered. Returns as elsewhere().
  bool tick(std::uint64_t now_ms) { return now_ms >= since_ms_ + std::max(kTryMs, timeout_ms_ / 2) && leave(now_ms); }
  // A hello is to be answered from now on: the coordinator is new, or does not know this daemon any more.
  void begin(std::uint64_t now_ms) { since_ms_ = now_ms; }

 private:
  bool go(std::size_t place, std::uint64_t now_ms) {
    at_ = place;
    since_ms_ = now_ms;
    return true;
  }

  const std::size_t places_;
  const std::uint64_t timeout_ms_;
  std::optional<Term> promised_;
  std::size_t at_ = 0;
  std::uint64_t since_ms_ = 0;  // it has been trying this one
};

}  // namespace tributary
