// JobValues: the values that a job's ranks exchange (docs/values.md), in the coordinator. Collects a key until the
// values of all ranks of the view are there, and keeps the answers to the newest keys, from view to view. Pure. The
// job's ledger owns it.
//
// Every rank asks for the keys in the same order and waits for each answer; a rank that is past a key had its answer
// before. So two keys that are open at once for long are a mistake of the program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/value_answers.h"

namespace tributary {

class JobValues {
 public:
  static constexpr std::size_t kMaxOpen = 8;          // keys
  static constexpr std::uint64_t kPatienceMs = 5000;  // with two keys that are open, or with ranks that have left

  // A view of so many ranks begins after this round.
  void begin(JobId job, ViewId view, Round round, std::uint32_t ranks);
  // Checks that the node with these ranks may send these values.
  static Status check(const SharedValues& said, std::uint32_t first_rank, std::uint32_t ranks);

  // Consequences: an answer to its author, or to all nodes of the view.
  struct Reply {
    std::optional<RankValues> to_author, to_all;
  };
  // Takes values. After an error no rank can continue.
  Result<Reply> on(const SharedValues& said, std::uint64_t now_ms);
  // Returns an error if ranks have waited for different keys for long.
  std::optional<Error> mistake(std::uint64_t now_ms) const;
  // Returns, in words, that ranks have waited for long for a value of one of these, which have left.
  std::optional<std::string> waits_for(std::uint32_t first_rank, std::uint32_t ranks, std::uint64_t now_ms) const;
  // Returns the ranks that others wait for, in words; empty: no rank waits.
  std::string waits() const;
  // Gives up all open keys. Returns the message for ranks: the key, and why there is no answer.
  RankValues give_up(const Error& why);

 private:
  struct Open {
    std::map<std::uint32_t, std::vector<std::byte>> values;  // by rank
    std::size_t bytes = 0;                                   // as SharedValues counts
    std::uint64_t since_ms = 0;
  };
  using OpenKey = std::pair<const ValueKey, Open>;
  RankValues answer_of(const SharedValues& values) const;
  Result<Reply> take_answer(const SharedValues& said);
  Status take_values(const SharedValues& said, Open& open);
  static std::string rank_in_words(std::uint32_t rank) { return "rank " + std::to_string(rank); }

  JobId job_;
  ViewId view_;
  std::uint32_t ranks_ = 0;
  std::map<ValueKey, Open> open_;
  ValueAnswers answers_;
};

}  // namespace tributary
