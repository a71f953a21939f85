// hostile_trainer: a rank that attaches to a worker and takes part in rounds, over and over, until it is ended. A
// hostile one has a thread besides that writes nonsense into all memory that it may write to, also what it holds for
// the worker's next process.
//
//   hostile_trainer SOCKET JOB MODE PUSH PULL NODE hostile|honest
//
// After each view it prints "rounds N writes N": how far it came in it, and how much was scribbled.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "common/config/choice.h"
#include "common/system/shared_memory.h"
#include "session/session.h"
#include "session/shared/attach_region.h"

namespace tributary::e2e {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint32_t kNodes = 2;
constexpr std::uint64_t kChunkBytes = 320u << 10;  // a top-k frame has two groups
constexpr std::size_t kNotes = 64u << 10;          // of a ring, before its frames
constexpr milliseconds kView{700};                 // then it attaches again
constexpr milliseconds kSlowness{2};               // of the honest rank, which lets frames of the other one wait
constexpr milliseconds kPause{20};

std::vector<TensorSpec> tensors() {
  return {{"a", {300, 401}}, {"b", {1500}}, {"c", {70'000}}};
}

using Memory = std::span<std::byte>;

// Memory that is mapped for writing, as the kernel says.
std::vector<Memory> mapped_memory() {
  std::vector<Memory> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, access) != 3) continue;
    if (access[1] != 'w' || access[3] != 's' || line.find("memfd:tributary") == std::string::npos) continue;
    found.push_back({reinterpret_cast<std::byte*>(begin), end - begin});
  }
  return found;
}

// Writes to the attach's memory until it goes.
class Scribbler {
 public:
  // everything: also where rounds, states and sizes are told, which soon ends the view.
  Scribbler(const RecoveryHandle& recovery, bool everything, std::uint64_t seed) : random_(seed) {
    const FileDescriptor ring(recovery.memory ? ::dup(recovery.memory.get()) : -1);
    const auto size = ring ? ::lseek(ring.get(), 0, SEEK_END) : -1;
    if (size > 0) {
      void* at = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, ring.get(), 0);
      if (at != MAP_FAILED) ring_ = {static_cast<std::byte*>(at), static_cast<std::size_t>(size)};
    }
    for (const Memory memory : mapped_memory()) {
      const std::uint64_t magic = *reinterpret_cast<const std::uint64_t*>(memory.data());
      const std::size_t notes = everything                  ? 0
                                : magic == kNodeRegionMagic ? kRegionAlign
                                : magic == kRankRegionMagic ? rank_gradients_offset(tensors().size())
                                                            : kNotes;
      if (notes < memory.size()) targets_.push_back(memory.subspan(notes));
    }
    thread_ = std::thread([this] { run(); });
  }
  ~Scribbler() {
    over_.store(true);
    thread_.join();
    if (!ring_.empty()) ::munmap(ring_.data(), ring_.size());
  }
  Scribbler(const Scribbler&) = delete;
  Scribbler& operator=(const Scribbler&) = delete;

  std::uint64_t writes() const { return writes_.load(); }

 private:
  void run() {
    // In some views without a pause, in others so seldom that most frames are still sound when they come.
    const int burst = 1 << random_() % 9;
    const std::chrono::microseconds pause(random_() % 4 * 1000);
    while (!over_.load() && !targets_.empty()) {
      for (int i = 0; i < burst; ++i) scribble();
      writes_.fetch_add(static_cast<std::uint64_t>(burst));
      std::this_thread::sleep_for(pause);
    }
  }

  // Words that lie near what is believed, and such as are far from it.
  std::uint32_t word() {
    switch (random_() % 6) {
      case 0:
        return 0;
      case 1:
        return ~0u;
      case 2:
        return static_cast<std::uint32_t>(random_() % 70'000);
      case 3:
        return 0x7f800000u + static_cast<std::uint32_t>(random_() % 3);  // infinity and NaN
      case 4:
        return static_cast<std::uint32_t>(random_()) >> random_() % 32;
      default:
        return static_cast<std::uint32_t>(random_());
    }
  }

  void scribble() {
    const Memory target = targets_[random_() % targets_.size()];
    const std::size_t words = target.size() / sizeof(std::uint32_t);
    auto* const all = reinterpret_cast<volatile std::uint32_t*>(target.data());
    const std::size_t first = random_() % words;
    // A word, or some of them: a frame's counts are words, its offsets half of one.
    const std::size_t count = random_() % 4 == 0 ? std::min<std::size_t>(random_() % 64, words - first) : 1;
    for (std::size_t i = first; i < first + count; ++i) all[i] = word();
  }

  std::mt19937_64 random_;
  Memory ring_;
  std::vector<Memory> targets_;
  std::atomic<bool> over_{false};
  std::atomic<std::uint64_t> writes_{0};
  std::thread thread_;
};

struct Rank {
  SessionOptions options;
  bool hostile = false;
  std::uint64_t attaches = 0;

  std::uint64_t take_part(Session& session, Clock::time_point until) const {
    std::mt19937 random(7);
    std::uint64_t rounds = 0;
    if (session.fresh()) {
      for (std::size_t t = 0; t < tensors().size(); ++t) {
        if (session.gives_values(t)) std::ranges::fill(session.initial(t), 1.0f);
      }
    }
    if (!session.start()) return 0;
    while (Clock::now() < until) {
      if (!hostile) std::this_thread::sleep_for(kSlowness);
      for (std::size_t t = 0; t < tensors().size(); ++t) {
        for (float& value : session.gradient(t)) value = static_cast<float>(random() % 1000) * 1e-5f;
        session.ready(t, 1);
      }
      const Result<StepState> state = session.wait();
      if (!state || *state != StepState::kContinue) break;
      ++rounds;
    }
    return rounds;
  }

  void attach_once() {
    ++attaches;
    const auto session = Session::attach(options, tensors());
    if (!session) {
      std::printf("attach: %s\n", session.error().message.c_str());
      return;
    }
    std::unique_ptr<Scribbler> scribbler;
    // The honest rank goes when the other one does.
    if (hostile) scribbler = std::make_unique<Scribbler>(*options.recovery, attaches % 3 == 0, attaches);
    const auto until = Clock::now() + (hostile ? kView : 100 * kView);
    const std::uint64_t rounds = take_part(**session, until);
    std::printf("rounds %llu writes %llu\n", static_cast<unsigned long long>(rounds),
                static_cast<unsigned long long>(scribbler ? scribbler->writes() : 0));
  }
};

int run(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "usage: hostile_trainer SOCKET JOB MODE PUSH PULL NODE hostile|honest\n");
    return 2;
  }
  Rank rank;
  rank.options.socket = argv[1];
  rank.options.job.name = argv[2];
  const auto mode = choice_of<Mode>(argv[3]);
  const auto push = parse_encoding(argv[4]), pull = parse_encoding(argv[5]);
  if (!mode || !push || !pull) {
    std::fprintf(stderr, "hostile_trainer: no such mode or encoding\n");
    return 2;
  }
  rank.options.job.mode = *mode;
  rank.options.job.push = *push;
  rank.options.job.pull = *pull;
  rank.options.job.chunk_bytes = kChunkBytes;
  rank.options.job.snapshot = {.every_s = 0, .every_rounds = 16};  // residuals go along with a push
  const auto node = static_cast<std::uint32_t>(std::atoi(argv[6]));
  rank.options.topology = {
      .rank = node, .world_size = kNodes, .local_rank = 0, .local_world_size = 1, .node_rank = node};
  rank.options.attach_timeout = milliseconds(10'000);
  rank.options.gradients_move = true;
  rank.options.recovery = std::make_shared<RecoveryHandle>();
  rank.hostile = std::string(argv[7]) == "hostile";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (;;) {
    rank.attach_once();
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace
}  // namespace tributary::e2e

int main(int argc, char** argv) {
  return tributary::e2e::run(argc, argv);
}
