// Figures: trainers' metrics of rounds: a loss, an accuracy, or any other measurement of a program. Means by samples,
// which add up over rounds, ranks and nodes. Pure.
//
// Trainer (Session::log) -> worker (RankFigures) -> coordinator (NodePace), whose status and metrics show the newest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/message_fields.h"
#include "common/base/utf8.h"

namespace tributary {

inline constexpr std::size_t kMaxFigures = 32;  // of a job
inline constexpr std::size_t kMaxFigureNameBytes = 64;

struct Figure {
  std::string name;
  double mean = 0.0;          // need not be finite: a loss that is not is news
  std::uint64_t samples = 0;  // that it is the mean of; 0: it has no weight in a mean with others

  static void fields(auto& m, auto&& field) {
    field(m.name, TRIB_WIRE(Name), AtMost{kMaxFigureNameBytes, "a figure's name"});
    field(m.mean, TRIB_WIRE(Mean));
    field(m.samples, TRIB_WIRE(Samples));
  }
  void check() const {
    if (!sound_name(name)) throw Malformed{"a figure's name is no UTF-8 text of 1 to 64 bytes"};
  }
  static bool sound_name(std::string_view name) {
    return !name.empty() && name.size() <= kMaxFigureNameBytes && is_utf8(name);
  }
};
static_assert(kMaxFigureNameBytes == 64);

struct Figures {
  Round round;                 // the newest that they are of
  std::vector<Figure> values;  // a name once

  bool empty() const { return values.empty(); }
  const Figure* find(std::string_view name) const {
    const auto at = std::ranges::find(values, name, &Figure::name);
    return at == values.end() ? nullptr : &*at;
  }
  // More names than kMaxFigures are left out.
  void add(const Figures& other) {
    round = std::max(round, other.round);
    for (const Figure& more : other.values) {
      const auto mine = std::ranges::find(values, more.name, &Figure::name);
      if (mine == values.end()) {
        if (values.size() < kMaxFigures) values.push_back(more);
        continue;
      }
      if (more.samples == 0) continue;
      if (mine->samples == 0) {
        *mine = more;
        continue;
      }
      const double share =
          static_cast<double>(more.samples) / (static_cast<double>(mine->samples) + static_cast<double>(more.samples));
      mine->mean = mine->mean * (1.0 - share) + more.mean * share;
      mine->samples =
          more.samples > ~std::uint64_t{0} - mine->samples ? ~std::uint64_t{0} : mine->samples + more.samples;
    }
  }

  // Takes newer figures of the same origin: each name replaces its older value; other names stay.
  void renew(const Figures& newer) {
    Figures all = newer;
    for (const Figure& old : values) {
      if (!newer.find(old.name) && all.values.size() < kMaxFigures) all.values.push_back(old);
    }
    all.round = std::max(round, newer.round);
    *this = std::move(all);
  }

  static void fields(auto& m, auto&& field) {
    field(m.round, TRIB_WIRE(Round));
    field(m.values, TRIB_WIRE(Values), AtMost{kMaxFigures, "the list of figures"});
  }
};

}  // namespace tributary
