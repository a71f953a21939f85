#include "server/coordinator/orders/diagnosis_keeper.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

std::size_t bytes_of(const Diagnosed& said) {
  std::size_t bytes = said.rates.size() * sizeof(LinkRate);
  for (const Setting& setting : said.settings) bytes += setting.key.size() + setting.value.size();
  for (const Check& check : said.checks)
    bytes += check.section.size() + check.name.size() + check.found.size() + check.advice.size();
  return bytes;
}

}  // namespace

std::uint32_t DiagnosisKeeper::begin(DiagnosisOrder order, std::vector<DiagnosedDaemon> daemons) {
  std::vector<DiagnosedDaemon> ordered;
  for (const bool server : {true, false}) {
    for (DiagnosedDaemon& daemon : daemons) {
      if (daemon.server == server) ordered.push_back(std::move(daemon));
    }
  }
  last_id_ = last_id_ + 1 == 0 ? 1 : last_id_ + 1;  // 0 is no diagnosis's
  const bool nobody = ordered.empty();
  diagnosis_ = Diagnosis{last_id_, std::move(order), std::move(ordered), nobody, 0};
  return last_id_;
}

void DiagnosisKeeper::on(std::uint64_t incarnation, const Diagnosed& said) {
  if (!under_way() || said.diagnosis != diagnosis_->id) return;
  const auto daemon = std::ranges::find(diagnosis_->daemons, incarnation, &DiagnosedDaemon::incarnation);
  if (daemon == diagnosis_->daemons.end() || daemon->done()) return;
  diagnosis_->bytes += bytes_of(said);
  if (diagnosis_->bytes <= kMaxBytes) {
    daemon->said = said;
  } else {
    daemon->silent_because = "there is no room for what it says: all daemons together have said too much";
  }
  diagnosis_->over = std::ranges::all_of(diagnosis_->daemons, &DiagnosedDaemon::done);
}

bool DiagnosisKeeper::expel(const std::string& key) {
  bool any = false;
  for (DiagnosedDaemon& daemon : diagnosis_->daemons) {
    if (daemon.key.empty() || daemon.key != key) continue;
    any = true;
    daemon.key.clear();
    if (!daemon.done()) daemon.silent_because = "its key was revoked";
  }
  return any;
}

std::uint64_t DiagnosisKeeper::patience_ms() const {
  const auto servers = std::ranges::count_if(diagnosis_->daemons, &DiagnosedDaemon::server);
  return kPatienceMs + (diagnosis_->order.measure ? static_cast<std::uint64_t>(servers) * kPatienceForServerMs : 0);
}

std::vector<DiagnosedDaemon> DiagnosisKeeper::tick(const std::function<std::string(std::uint64_t)>& gone,
                                                   std::uint64_t now_ms) {
  std::vector<DiagnosedDaemon> due;
  if (!under_way()) return due;
  bool before = false;  // a daemon whose turn is before is not done
  for (DiagnosedDaemon& daemon : diagnosis_->daemons) {
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
    before |= daemon.server || diagnosis_->order.measure;
  }
  diagnosis_->over = std::ranges::all_of(diagnosis_->daemons, &DiagnosedDaemon::done);
  return due;
}

std::optional<DiagnosisStatus> DiagnosisKeeper::status(std::uint32_t id) const {
  if (!diagnosis_ || diagnosis_->id != id) return std::nullopt;
  return DiagnosisStatus{diagnosis_->id, diagnosis_->order.measure, diagnosis_->over, 0, diagnosis_->daemons};
}

}  // namespace tributary
