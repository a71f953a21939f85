#include "server/coordinator/orders/exam_keeper.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

std::size_t bytes_of(const Examined& said) {
  std::size_t bytes = said.rates.size() * sizeof(LinkRate);
  for (const Setting& setting : said.settings) bytes += setting.key.size() + setting.value.size();
  for (const Check& check : said.checks)
    bytes += check.section.size() + check.name.size() + check.found.size() + check.advice.size();
  return bytes;
}

}  // namespace

std::uint32_t ExamKeeper::begin(ExamOrder order, std::vector<ExaminedDaemon> daemons) {
  std::vector<ExaminedDaemon> ordered;
  for (const bool server : {true, false}) {
    for (ExaminedDaemon& daemon : daemons) {
      if (daemon.server == server) ordered.push_back(std::move(daemon));
    }
  }
  last_id_ = last_id_ + 1 == 0 ? 1 : last_id_ + 1;  // 0 is no examination's
  const bool nobody = ordered.empty();
  exam_ = Exam{last_id_, std::move(order), std::move(ordered), nobody, 0};
  return last_id_;
}

void ExamKeeper::on(std::uint64_t incarnation, const Examined& said) {
  if (!under_way() || said.exam != exam_->id) return;
  const auto daemon = std::ranges::find(exam_->daemons, incarnation, &ExaminedDaemon::incarnation);
  if (daemon == exam_->daemons.end() || daemon->done()) return;
  exam_->bytes += bytes_of(said);
  if (exam_->bytes <= kMaxBytes) {
    daemon->said = said;
  } else {
    daemon->silent_because = "there is no room for what it says: all daemons together have said too much";
  }
  exam_->over = std::ranges::all_of(exam_->daemons, &ExaminedDaemon::done);
}

bool ExamKeeper::expel(const std::string& key) {
  bool any = false;
  for (ExaminedDaemon& daemon : exam_->daemons) {
    if (daemon.key.empty() || daemon.key != key) continue;
    any = true;
    daemon.key.clear();
    if (!daemon.done()) daemon.silent_because = "its key was revoked";
  }
  return any;
}

std::uint64_t ExamKeeper::patience_ms() const {
  const auto servers = std::ranges::count_if(exam_->daemons, &ExaminedDaemon::server);
  return kPatienceMs + (exam_->order.measure ? static_cast<std::uint64_t>(servers) * kPatienceForServerMs : 0);
}

std::vector<ExaminedDaemon> ExamKeeper::tick(const std::function<std::string(std::uint64_t)>& gone,
                                             std::uint64_t now_ms) {
  std::vector<ExaminedDaemon> due;
  if (!under_way()) return due;
  bool before = false;  // a daemon whose turn is before is not done
  for (ExaminedDaemon& daemon : exam_->daemons) {
    if (daemon.done()) continue;
    daemon.silent_because = gone(daemon.incarnation);
    if (daemon.asked && now_ms > daemon.first_ms + patience_ms()) {
      daemon.silent_because = "it has said nothing for " + std::to_string(patience_ms() / 1000) +
                              " s: it waits for a path, a disk or a name that does not answer, or is of an older "
                              "release";
    }
    if (daemon.done()) continue;
    const bool its_turn = daemon.server || !before;
    if (its_turn && (!daemon.asked || now_ms >= daemon.again_ms)) {
      if (!std::exchange(daemon.asked, true)) daemon.first_ms = now_ms;
      daemon.again_ms = now_ms + kAgainMs;
      due.push_back(daemon);
    }
    before |= daemon.server || exam_->order.measure;
  }
  exam_->over = std::ranges::all_of(exam_->daemons, &ExaminedDaemon::done);
  return due;
}

std::optional<ExamStatus> ExamKeeper::status(std::uint32_t id) const {
  if (!exam_ || exam_->id != id) return std::nullopt;
  return ExamStatus{exam_->id, exam_->order.measure, exam_->over, 0, exam_->daemons};
}

}  // namespace tributary
