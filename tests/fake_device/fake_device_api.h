// FakeDeviceApi: a simulated node with several GPUs and NCCL, for tests without any. Several users of one instance,
// each with devices of its own, are several nodes: communicators with a key go over all of them.
//
// Device memory is host memory. A stream is a queue of operations; run_one() executes one of those that may run (the
// heads of streams, as far as events and collectives allow), chosen at random by the seed. Nothing runs by itself. So
// whatever order the devices could choose, some seed chooses. Kernels are the CPU's (common/math/encoding.h,
// kernels/tree_sum.h), collectives add in the order of ranks: ((r0 + r1) + r2) + ...
//
// Checks (violations() returns the violations, in words):
//   order       any two conflicting accesses, of operations or the host (host_access()), are ordered by streams, by
//               events, collectives, callbacks and calls; whatever order happened (happens_before.h)
//   memory      accesses lie within live blocks; nothing is freed while work may touch it; exported pointers are bases;
//               nothing is taken or freed while a group of collectives is half launched
//   NCCL        calls for several communicators are in a group; all ranks call the same collectives, with the same
//               counts, in the same order; streams are not used between group_end() and comm_settled(), and aborted
//               communicators not at all
//   callbacks   call nothing of the api
//   the end     streams are idle when destroyed; live() counts what is left
// Faults happen as FakeFaults plans them.
//
// Not covered: races below the runtime (a kernel's own threads, NCCL's protocols), deadlocks of NCCL's kernels, limits
// of launch queues, the lifetime of IPC mappings in other processes, performance. A host callback counts as known to
// the whole host once it has run: an engine that acts on one it has not looked at yet is not found.
//
// Thread rule: any thread, like the real one.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "tests/fake_device/happens_before.h"
#include "worker/device/device_api.h"

namespace tributary::testing {

struct FakeFaults {
  enum class Collective {
    kNone,
    kCallFails,   // the call of `position` returns an error
    kFailsAsync,  // the communicator of `position` reports an error, its stream goes on without a result, others hang
    kHangs,       // until it is aborted
    kLate,        // runs after `turns` further turns
  };
  Collective collective = Collective::kNone;
  std::uint64_t at = 0;  // which collective of the communicator, from 0
  std::uint32_t position = 0;
  std::uint64_t turns = 0;

  std::optional<std::uint64_t> copy_fails;  // the n-th copy's call, from 0
  // The n-th kernel or copy that runs, from 0, is a fault: its device runs nothing any more, calls no host function,
  // and hangs collectives with it. A query of the device reports the fault.
  std::optional<std::uint64_t> kernel_faults;
  bool collectives_report_faults = false;  // communicators of a device with a fault report an error, too
  // The n-th kernel or copy, from 0, hangs until let_go(), and so do the operations behind it on its stream.
  std::optional<std::uint64_t> kernel_hangs;
  bool communicators_hang = false;                // create_comms() never settles
  std::optional<std::string> communicators_fail;  // create_comms() returns this
  std::string ignored_event;                      // waits for events of this label do nothing: a planted bug
};

struct FakeDeviceOptions {
  std::uint32_t devices = 1;
  std::uint64_t seed = 1;
  std::size_t device_bytes = 1u << 30;  // of each device
  std::size_t pinned_bytes = 1u << 30;  // together
  // How long after a group's end its collectives are on their streams, by the clock: NCCL puts them there on a thread
  // of its own. 0: after some questions.
  std::uint64_t settle_ns = 0;
  FakeFaults faults;
};

class FakeDeviceApi final : public DeviceApi {
 public:
  explicit FakeDeviceApi(FakeDeviceOptions options);
  ~FakeDeviceApi() override;

  // ---- The scheduler ----
  // Runs one operation. False if nothing can run: all streams are empty, or their heads hang.
  bool run_one();
  void run_all() {
    while (run_one()) {
    }
  }

  // Holds back all settling until it is called with false.
  void hold_settling(bool hold);
  // Lets the first `calls` calls that make communicators complete; later ones wait.
  void let_connect(std::uint64_t calls);
  // Lets the work that hangs by kernel_hangs continue.
  void let_go();

  // ---- What was found ----
  std::vector<std::string> violations() const;
  struct Live {
    std::size_t blocks = 0, pinned = 0, streams = 0, events = 0, communicators = 0;
    bool operator==(const Live&) const = default;
  };
  Live live() const;
  std::size_t aborted() const;      // communicators
  std::size_t collectives() const;  // that were executed
  std::size_t groups() const;       // that had collectives
  std::size_t waits() const;        // for events, that were issued
  // Labels of streams that have had both host functions and copies or kernels.
  std::vector<std::string> mixed_streams() const;
  // Returns the memory of a handle of export_memory(); null if it was freed.
  void* opened(const IpcHandle& handle) const;

  // ---- DeviceApi ----
  const std::vector<DeviceInfo>& devices() const override { return infos_; }
  Result<void*> allocate(DeviceIndex device, std::size_t bytes, const char* purpose) override;
  void free(DeviceIndex device, void* memory) override;
  Status pin(DeviceIndex near, std::span<std::byte> memory, const char* purpose) override;
  void unpin(std::span<std::byte> memory) override;
  Result<IpcHandle> export_memory(DeviceIndex device, void* memory) override;
  Result<StreamId> create_stream(DeviceIndex device, const char* label) override;
  void destroy_stream(StreamId stream) override;
  Result<bool> idle(StreamId stream) override;
  Result<EventId> create_event(DeviceIndex device, const char* label) override;
  void destroy_event(EventId event) override;
  Status record(EventId event, StreamId stream) override;
  Status wait(StreamId stream, EventId event) override;
  Result<bool> reached(EventId event) override;
  Status copy_to_host(StreamId stream, std::byte* pinned, const void* device, std::size_t bytes) override;
  Status copy_to_device(StreamId stream, void* device, const std::byte* pinned, std::size_t bytes) override;
  Status call_host(StreamId stream, HostCallback callback, void* context) override;
  Status sum(StreamId stream, std::span<const float* const> inputs, std::size_t count, float* out) override;
  Status encode(StreamId stream, const Encode& work) override;
  std::size_t encode_scratch_bytes(EncodingSpec encoding, std::size_t elements, std::size_t inputs) const override;
  Status apply(StreamId stream, EncodingSpec encoding, const std::byte* frame, std::size_t elements,
               float* parameters) override;
  Status step(StreamId stream, const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars,
              const kernels::BlockArgs& block) override;
  Result<std::vector<CommId>> create_comms(std::span<const DeviceIndex> devices) override;
  Result<std::vector<CommId>> join_comms(const CommKey& key, std::uint32_t size,
                                         std::span<const CommSeat> seats) override;
  Result<CommKey> make_comm_key() override;
  Result<bool> comm_settled(CommId comm) override;
  Status group_start() override;
  Status group_end() override;
  Status reduce_scatter(CommId comm, StreamId stream, const float* send, float* receive, std::size_t count) override;
  Status all_gather(CommId comm, StreamId stream, float* gathered, std::size_t count) override;
  Status all_reduce(CommId comm, StreamId stream, float* values, std::size_t count) override;
  void abort(CommId comm) override;
  void destroy(CommId comm) override;
  std::string lost() const override;
  Result<std::string> collectives_version() override { return "fake NCCL"; }
  std::vector<std::string> collectives_settings() const override { return {"NCCL_FAKE=1"}; }
  void host_access(std::span<const std::byte> pinned, bool write) override;

 private:
  struct Touch {  // memory that an operation uses
    const void* memory = nullptr;
    std::size_t bytes = 0;
    bool write = false;
  };
  struct Block {
    std::unique_ptr<std::byte, void (*)(void*)> memory{nullptr, nullptr};
    std::size_t bytes = 0;
    std::optional<std::uint32_t> device;  // none: of the host, pinned
    AccessHistory history;
  };
  struct CommSet;
  enum class CollectiveKind { kReduceScatter, kAllGather, kAllReduce };
  struct Collective {
    std::shared_ptr<CommSet> set;
    CollectiveKind kind = CollectiveKind::kReduceScatter;
    std::size_t count = 0;
    struct Part {
      CommId comm;
      StreamId stream;
      const float* send = nullptr;
      float* receive = nullptr;
      bool over = false;  // executed, or aborted: its stream may go on
    };
    std::vector<Part> parts;
    bool executed = false;
    std::optional<std::uint64_t> due;  // late: the turn at which it may run
  };
  struct Operation {
    enum class Kind { kWork, kRecord, kWait, kCall, kCollective };
    Kind kind = Kind::kWork;
    std::string what;
    std::vector<Touch> touches;
    std::function<void()> run;
    EventId event;
    std::uint64_t record = 0;  // of the event: this one (kRecord), or the one waited for
    std::shared_ptr<Collective> collective;
    Clock issued;  // what the host knew
  };
  struct Stream {
    std::uint32_t device = 0;
    std::size_t actor = 0;
    std::string label;
    Clock clock;
    std::deque<Operation> operations;
    std::size_t unsettled = 0;  // collectives that are not on it yet
    bool hung = false, works = false, calls = false;
  };
  struct Event {
    std::string label;
    std::uint64_t recorded = 0, reached = 0;  // how often
    std::map<std::uint64_t, Clock> clocks;    // of reached records that may be waited for
  };
  struct CommSet {
    std::size_t size = 0;
    std::map<std::uint32_t, CommId> comms;         // by rank: those that have joined and are not dropped
    std::size_t joined = 0;                        // ever
    std::deque<std::shared_ptr<Collective>> open;  // called by some, not executed: oldest first
    std::uint64_t first = 0;                       // number of open.front()
    bool broken = false;                           // nothing runs any more
  };
  // The ranks that were created by one call: those of one process.
  struct Party {
    std::vector<CommId> comms;
    std::uint64_t settle_in = 0;   // questions until it is
    std::uint64_t settles_ns = 0;  // not before, by the clock
    bool never = false;
    std::uint64_t number = 0;                              // of the call
    std::vector<std::pair<StreamId, Operation>> launches;  // put on the streams when settled
  };
  struct Comm {
    std::shared_ptr<CommSet> set;
    std::shared_ptr<Party> party;
    std::uint32_t rank = 0, device = 0;
    std::uint64_t calls = 0;
    std::optional<Error> error;
  };
  struct Group {  // of a thread
    int depth = 0;
    std::set<CommId> comms;
  };

  using Lock = std::unique_lock<std::mutex>;
  Lock enter(const char* call) const;  // an unowned lock: called from a host callback
  void violation(const std::string& text) const;
  Block* block_of(const void* memory, std::size_t bytes);
  void touch(const Touch& what, std::size_t actor, std::uint64_t time, const Clock& knows, const std::string& by);
  std::string name(const Stream& stream, const std::string& operation) const;
  Error error(std::uint32_t device, const std::string& operation, const std::string& why) const;
  Error fault(std::uint32_t device, const std::string& operation) const;
  Status put(const char* call, StreamId stream, Operation operation);
  void check_touches(const Stream& stream, const Operation& operation);
  Status make_room(std::optional<std::uint32_t> device, std::size_t bytes, const char* purpose);
  Result<void*> take(std::uint32_t device, std::size_t bytes, const char* purpose);
  void give(const void* memory, std::optional<std::uint32_t> device);
  bool runnable(const Stream& stream, StreamId id);
  void execute(StreamId id);
  bool can_execute(const Collective& collective);
  void execute_collective(Collective& collective);
  void move_values(const Collective& collective);
  static const char* name(CollectiveKind kind);
  Status collective(CollectiveKind kind, CommId comm, StreamId stream, const float* send, float* receive,
                    std::size_t count);
  std::vector<CommId> join(const std::shared_ptr<CommSet>& set, std::span<const CommSeat> seats);
  Status copy(const char* call, StreamId stream, std::byte* to, const std::byte* from, std::size_t bytes);
  void drop(CommId comm, Comm& known);
  void check_no_launch(const char* call) const;

  const FakeDeviceOptions options_;
  std::vector<DeviceInfo> infos_;
  mutable std::mutex mutex_;
  mutable std::atomic<std::thread::id> in_callback_{};
  mutable std::vector<std::string> violations_;
  std::mt19937_64 random_;
  std::map<const std::byte*, Block> blocks_;
  std::vector<std::size_t> device_used_;
  std::size_t pinned_used_ = 0;
  std::map<StreamId, Stream> streams_;
  std::map<EventId, Event> events_;
  std::map<CommId, Comm> comms_;
  bool settling_held_ = false, let_go_ = false;
  std::set<std::string> mixed_;
  std::uint64_t parties_ = 0, may_connect_ = ~0ull;
  std::set<std::uint32_t> lost_;  // devices, after a fault
  std::uint64_t work_ = 0;        // kernels and copies that ran
  std::uint64_t last_id_ = 0;
  std::size_t last_actor_ = 0;
  Clock host_;
  std::map<std::thread::id, Group> groups_;
  std::map<std::uint64_t, std::shared_ptr<CommSet>> keys_;  // by number in the key; null: nobody has joined
  std::uint64_t copies_ = 0, turns_ = 0;
  std::size_t aborted_ = 0, executed_ = 0, waits_ = 0, groups_ended_ = 0;
};

}  // namespace tributary::testing
