// StoredFetch: one large part of a rank's state on its way from another daemon into a store
// (server/coordinator/cluster/large_part_store.h). Pure: pieces in, requests and orders to the disk out. The coordinator
// fetches from workers, and from servers that have a copy; a server fetches its copies from the coordinator.
//
// The disk takes its time: the next piece is requested when the store has the last one.
//
// Owner: one thread. The owner may let go of it at any moment; then nothing of it is called any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/wire/part_fetch.h"
#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

class StoredFetch {
 public:
  enum class End { kComplete, kStoreFailed, kWrongChecksum };

  using Work = std::function<Status()>;
  using Worked = std::function<void(const Status&, std::uint64_t now_ms)>;
  struct Ports {
    std::function<void(Work, Worked)> disk;        // carries it out, later
    std::function<void(const WantPart&)> request;  // from the daemon that has the part
    // Called once, and last: the part is durable, or cannot be had like this. status: of the store.
    std::function<void(End, const Status& status, std::uint64_t now_ms)> ended;
  };
  StoredFetch(LargePartStore& store, JobId job, const LargePart& large, Ports ports, std::uint64_t now_ms);

  void begin(std::uint64_t now_ms);
  // Returns the bytes that were taken: 0 if the piece is not the next one.
  std::size_t take(const StatePart& m, std::uint64_t now_ms);
  // The source waits for the part itself.
  void comes(std::uint64_t now_ms) { parts_.comes(now_ms); }
  bool all_taken() const { return parts_.ended(); }
  // Repeats requests. Returns whether nothing has come for too long.
  bool tick(std::uint64_t now_ms);

 private:
  void order(Work work, bool last, std::uint64_t now_ms);
  void request(std::uint64_t now_ms);

  LargePartStore& store_;
  const Ports ports_;
  PartFetch parts_;
  std::size_t orders_ = 0;  // to the disk, that have not ended
  const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace tributary
