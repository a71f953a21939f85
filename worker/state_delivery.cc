#include "worker/state_delivery.h"

#include <utility>

namespace tributary {

void StateDelivery::deliver(TrainerId to, Whose whose, RankState state, std::uint64_t now_ms) {
  Waiting one{to, whose, std::move(state), {}};
  one.large = StateHead::of(one.state.state).large;
  const auto here = one.large ? context_.held.large(one.large) : nullptr;
  if (here || !one.large) return send(one, here);
  waiting_.push_back(std::move(one));
  fetch_next(now_ms);
}

void StateDelivery::send(const Waiting& one, const std::shared_ptr<const SealedBytes>& large) {
  const std::vector<int> fds = large ? std::vector{large->fd()} : std::vector<int>();
  if (one.whose == Whose::kOwn) {
    context_.trainers.send(one.to, HeldState{one.state}, fds);
  } else {
    context_.trainers.send(one.to, one.state, fds);
  }
}

void StateDelivery::fetch_next(std::uint64_t now_ms) {
  while (!coming_ && !waiting_.empty()) {
    const LargePart large = waiting_.front().large;
    auto memory = SealedWriter::begin(large.bytes, "what a rank kept");
    if (memory) {
      coming_.emplace(PartFetch(job_, large, now_ms), std::move(*memory));
      ask(now_ms);
    } else {
      arrived(large, nullptr, memory.error().message);
    }
  }
}

void StateDelivery::ask(std::uint64_t now_ms) {
  for (const WantPart& want : coming_->fetch.wants(now_ms)) context_.coordinator.send(want);
}

void StateDelivery::on(const StatePart& m, std::uint64_t now_ms) {
  if (!coming_ || m.part.large != coming_->fetch.large()) return;
  const LargePart large = m.part.large;
  std::string why_not;
  std::shared_ptr<const SealedBytes> memory;
  if (m.comes) {
    return coming_->fetch.comes(now_ms);
  } else if (m.data.empty()) {
    why_not = "nobody has it any more";
  } else if (!coming_->fetch.take(m, now_ms)) {
    return;
  } else if (Status written = coming_->memory.write(m.data); !written) {
    why_not = written.error().message;
  } else if (!coming_->fetch.ended()) {
    return ask(now_ms);
  } else if (!coming_->fetch.right()) {
    why_not = "what came has another checksum";
  } else if (auto sealed = coming_->memory.seal(); sealed) {
    memory = std::move(*sealed);
  } else {
    why_not = sealed.error().message;
  }
  coming_.reset();
  arrived(large, memory, why_not);
  fetch_next(now_ms);
}

void StateDelivery::arrived(const LargePart& large, const std::shared_ptr<const SealedBytes>& memory,
                            const std::string& why_not) {
  if (!memory) context_.logger->warn("{} of what a rank kept cannot be had: {}", large.in_words(), why_not);
  for (const Waiting& one : waiting_) {
    if (one.large == large) send(one, memory);
  }
  std::erase_if(waiting_, [&](const Waiting& one) { return one.large == large; });
}

void StateDelivery::tick(std::uint64_t now_ms) {
  if (!coming_) return;
  if (!coming_->fetch.given_up(now_ms)) return ask(now_ms);
  const LargePart large = coming_->fetch.large();
  coming_.reset();
  arrived(large, nullptr, "no part of it has come for " + std::to_string(PartFetch::kPatienceMs) + " ms");
  fetch_next(now_ms);
}

}  // namespace tributary
