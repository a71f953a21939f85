// GlooRing: one member's place in a ring of TCP connections, and Gloo's ring all-reduce over it. Hides the Gloo
// library: no type of it is seen outside gloo_ring.cc, and no exception of it leaves (but see below).
//
// It adds to Gloo:
//   abort()    wakes the threads that wait in the ring, at once. Gloo only has time-outs: a thread that waits for a
//              neighbour which waits for another member sees neither's end. So the buffers that Gloo waits on are ours
//              and forward to its own.
//   patience   Until a bucket has come back summed, a wait is a wait for another node's trainers, and those may take
//              their time. After that only the network can be slow, and the time-out counts.
//   a ring     Members connect to their two neighbours only; Gloo's own rendezvous connects all with all.
//
// Thread rule: one thread at a time, but abort() from any. Gloo's input and output runs on a thread of the device; an
// exception there (a peer that does not speak its protocol, a system call that should not fail) ends the process:
// docs/allreduce.md explains why, and how it shows.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary {

// A thread of Gloo's and an address of this machine that its sockets are bound to.
class GlooDevice {
 public:
  // address: a number or a name of one of this machine's addresses.
  static Result<std::shared_ptr<GlooDevice>> create(const std::string& address);
  ~GlooDevice();
  GlooDevice(const GlooDevice&) = delete;
  GlooDevice& operator=(const GlooDevice&) = delete;

 private:
  friend class GlooRing;
  struct Impl;
  explicit GlooDevice(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A member's contribution to a sum. Requested part by part, each part once, just before it is sent or added to received
// values. So the part is in the cache, and there is one pass over memory less than with summing before sending.
class RingSource {
 public:
  virtual ~RingSource() = default;
  // out[i] = own[first + i], for i < count.
  virtual void fill(std::size_t first, std::size_t count, float* out) = 0;
  // out[i] = own[first + i] + other[i].
  virtual void fill_and_add(std::size_t first, std::size_t count, const float* other, float* out) = 0;
};

class GlooRing {
 public:
  // timeout: of a connection, and of waits for the network alone. patience: of the other waits; 0: no limit.
  struct Options {
    std::uint32_t rank = 0, size = 1;
    std::chrono::milliseconds timeout{30'000};
    std::chrono::milliseconds patience{0};
  };
  // device: may be null for a ring of one, in which every call succeeds at once.
  static Result<std::unique_ptr<GlooRing>> create(std::shared_ptr<GlooDevice> device, Options options);
  ~GlooRing();  // closes the connections; REQUIRES: no thread is in a call
  GlooRing(const GlooRing&) = delete;
  GlooRing& operator=(const GlooRing&) = delete;

  std::uint32_t previous() const { return (options_.rank + options_.size - 1) % options_.size; }
  std::uint32_t next() const { return (options_.rank + 1) % options_.size; }

  // This member's addresses for previous() and next(), which pass them to their connect(). A few bytes each, constant
  // for the life of the ring; empty in a ring of one.
  std::vector<std::byte> address_for_previous() const;
  std::vector<std::byte> address_for_next() const;
  // Blocks. previous: that member's address_for_next(); next: that member's address_for_previous().
  Status connect(std::span<const std::byte> previous, std::span<const std::byte> next);

  // Errors of the following calls: kStopped after abort(), kTimeout, kUnavailable for a connection that broke; the
  // message has Gloo's words and names the member of the ring. After any error the ring is unusable.

  // Sets values to the sum of all members' sources; 1 <= count. All members call in the same order with the same
  // counts. Adding goes around the ring: the order differs from part to part of the buffer, and is the same on all
  // members and from call to call. Two members add a + b: there is only one order.
  Status allreduce(float* values, std::size_t count, RingSource& source);
  // Pass data one way along the ring, from member 0 on. bytes > 0.
  Status send_next(const void* data, std::size_t bytes);
  Status receive_previous(void* data, std::size_t bytes);
  // Returns when all members have called it. The limit is for each wait.
  Status meet(std::chrono::milliseconds patience);
  // Neighbours that leave cleanly send a goodbye: they need nothing more of this member. A member that has received
  // both goodbyes, and has sent its own, may close. expect_goodbyes(): once, before the following calls.
  Status expect_goodbyes();
  // Waits until previous() sends its goodbye (ok), its connection breaks (an error), or rouse() is called (ok). A
  // collective may not notice a broken connection: Gloo wakes only threads that wait for a message to begin.
  Status watch();
  void rouse();  // any thread, after expect_goodbyes()
  Status say_goodbye(std::chrono::milliseconds patience);

  // Any thread. Present and later waits end with kStopped. Connections stay open.
  void abort();

 private:
  struct Impl;
  GlooRing(Options options, std::unique_ptr<Impl> impl);
  template <class Run>
  Status guarded(const char* what, Run run);

  const Options options_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
