// GlooRing: one member's place in a ring of TCP connections, and Gloo's ring all-reduce over it. Hides the Gloo
// library: no type of it is seen outside gloo_ring.cc, and no exception of it leaves (but see below).
//
// What it adds to Gloo:
//   abort()    wakes whoever waits in the ring, at once. Gloo itself only knows time-outs: a thread that waits for a
//              neighbour which waits for somebody else sees neither's end. So the buffers that Gloo waits on are ours
//              and forward to its own.
//   patience   Until a bucket has come back summed, a wait is a wait for another node's trainers, and those may take
//              their time. After that only the network can be slow, and the time-out counts.
//   a ring     Members connect to their two neighbours only; Gloo's own rendezvous connects all with all.
//
// Thread rule: one thread at a time, but abort() from any. Gloo's input and output runs on a thread of the device; what
// it throws there (a peer that does not speak its protocol, a call of the kernel that cannot fail) ends the process:
// docs/allreduce.md says why, and what is seen of it.
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

// What a member adds to a sum. Asked for part by part, each part once, just before it is sent or added to what came: so
// that it is in the cache then, and a pass over memory less than summing first and sending later.
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
  // timeout: of a connection, and of what only the network is waited for. patience: of the other waits; 0: no end.
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

  // Where the neighbours find this member: what previous() and next() hand to their connect(). A few bytes each,
  // the same ones for the life of the ring; empty in a ring of one.
  std::vector<std::byte> address_for_previous() const;
  std::vector<std::byte> address_for_next() const;
  // Blocks. previous: what that member gave as its address_for_next(); next: as its address_for_previous().
  Status connect(std::span<const std::byte> previous, std::span<const std::byte> next);

  // Errors of what follows: kStopped after abort(), kTimeout, kUnavailable for a connection that broke; the message has
  // Gloo's words and names the member of the ring. After any error the ring is of no more use.

  // values becomes the sum over all members of what their sources say; 1 <= count. All members call in the same order
  // with the same counts. Adding goes around the ring: the order differs from part to part of the buffer, and is the
  // same on all members and from call to call. Two members add a + b: there is only one order.
  Status allreduce(float* values, std::size_t count, RingSource& source);
  // One way along the ring, to pass something on from member 0. bytes > 0.
  Status send_next(const void* data, std::size_t bytes);
  Status receive_previous(void* data, std::size_t bytes);
  // Returns when all members have called it. The limit is for each wait.
  Status meet(std::chrono::milliseconds patience);
  // Neighbours that leave in good order say goodbye: nothing is needed from you any more. Who hears both, and has said
  // it, may close. expect_goodbyes(): once, before the following ones.
  Status expect_goodbyes();
  // Waits until previous() says goodbye (ok), its connection breaks (an error), or somebody calls rouse() (ok). A
  // collective may not notice a broken connection: Gloo tells only those that wait for a message to begin.
  Status watch();
  void rouse();  // any thread, after expect_goodbyes()
  Status say_goodbye(std::chrono::milliseconds patience);

  // Any thread. Whoever waits or will wait gets kStopped. Connections stay open.
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
