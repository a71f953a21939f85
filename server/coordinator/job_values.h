// JobValues: what the ranks of a job give each other (docs/values.md), in the coordinator. Collects a key until the
// values of all ranks of the view are there, and knows the answers to the newest keys, from view to view. Pure. The
// job's ledger owns it.
//
// Every rank asks for the keys in the same order and waits for each answer; whoever has passed a key said its answer
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
  // May the node with these ranks say so?
  static Status check(const SharedValues& said, std::uint32_t first_rank, std::uint32_t ranks);

  // Consequences: an answer to its author, or to all nodes of the view.
  struct Reply {
    std::optional<RankValues> to_author, to_all;
  };
  // An error is one that no rank can go on with.
  Result<Reply> on(const SharedValues& said, std::uint64_t now_ms);
  // Ranks wait for different keys, and have for long.
  std::optional<Error> mistake(std::uint64_t now_ms) const;
  // Ranks wait, and have for long, for a value of one of these, which have left: in words.
  std::optional<std::string> waits_for(std::uint32_t first_rank, std::uint32_t ranks, std::uint64_t now_ms) const;
  // For whom ranks wait, in words; empty: none does.
  std::string waits() const;
  // The key that is open, why nobody gets an answer, and what ranks are told. No key is open after that.
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
