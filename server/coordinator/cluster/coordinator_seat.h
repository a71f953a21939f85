// CoordinatorSeat: which server has the coordinator, as one of those that may have it knows (docs/failover.md). Pure:
// reports of the others and ticks in, decisions out. The coordinator's shell owns it, and so does the simulator.
//
//   follows ── nobody has the coordinator, and no server before this one in the list is there ──► stands
//   stands  ── its new term is on the disk ──► has the coordinator
//   any     ── a higher term is reported ──► follows
//
// Terms of different servers are different numbers. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/config/config.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_registry.h"

namespace tributary {

class CoordinatorSeat {
 public:
  // Servers before this one in the list that are there have so many timeouts to take the coordinator.
  static constexpr std::uint64_t kTurns = 3;
  static constexpr std::uint64_t kMostAhead = 1ull << 32;  // terms, of one report

  struct Options {
    ShardIndex place;  // this server's index, and its place in the list
    std::uint16_t places = 1;
    std::uint64_t timeout_ms = 10'000;  // a server that is silent for so long is lost
  };
  // known: the highest term that this server has followed or taken.
  CoordinatorSeat(const Options& options, Term known, std::uint64_t now_ms);

  bool holds() const { return state_ == State::kHolds; }
  Term term() const { return term_; }  // the highest that is known
  // The report for the others, and for daemons that ask here. The caller adds the admin address.
  SeatReport report(std::uint64_t now_ms) const;
  // In words, and with its admin address: "server 1 (http://10.0.0.2:8080)"; empty: nobody is known to have it.
  std::string holder_in_words() const;

  // Somebody has obeyed, or taken, this term. One that is further ahead than any coordinator has come is not believed.
  // After one between the last that it knew of and its own, another server had the coordinator and this one did not know:
  // it follows, to stand again as one that has moved.
  void learn(Term term);
  // Another server's report.
  void on(const SeatReport& m, std::uint64_t now_ms);
  // The term under which this server is to have the coordinator. The caller saves it, and calls took() or failed().
  std::optional<Term> stand(std::uint64_t now_ms);
  // Whether another server may have had the coordinator since this server's registry was written. kept: on its disk.
  // known: the highest term, when it stood. A server but the first that never had it has copies at most.
  static bool moved(const SeatTerms& kept, Term known, ShardIndex place);
  // Has it heard of such a one? Until it takes the next term.
  bool unaware() const { return unaware_; }
  // When each of the others was heard last, by this server or, if it had the coordinator, by anybody; or when this server
  // began to listen.
  std::map<std::uint16_t, std::uint64_t> last_heard(std::uint64_t now_ms) const;
  // The term is on the disk. moved: as above, or unaware(). False: a higher one was reported meanwhile.
  bool took(Term term, bool moved);
  // It cannot do what a holder does: the others have several timeouts to take the coordinator.
  void give_up(std::uint64_t now_ms);
  void failed(std::uint64_t now_ms);  // it could not be saved: another attempt follows, after a timeout

 private:
  enum class State { kFollows, kStands, kHolds };
  bool there(std::uint16_t place, std::uint64_t now_ms) const;
  std::uint64_t vacant_since() const;
  Term next_term() const;

  const Options options_;
  Term term_;
  Term before_;  // of its registry, as far as it knew; its own where the registry may be of any
  bool unaware_ = false;
  State state_ = State::kFollows;
  std::uint64_t since_ms_;                        // it knows nothing of before
  ShardIndex holder_ = kNoShard;                  // of term_; this server itself only while it holds the coordinator
  std::uint64_t holder_ms_ = 0;                   // when somebody heard it last
  std::string admin_;                             // the holder's
  std::map<std::uint16_t, std::uint64_t> heard_;  // reports of the others, last
};

}  // namespace tributary
