// Drives a fuzz target where there is no fuzzer: its seeds, and mutations of each, which are the same in every run.
// The input of which the target dies is a finding, and is kept in the working directory.
//
//   fuzz NAME         all of them, in a child process
//   fuzz NAME FILE    one input, in this process, for a debugger
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <new>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutations.h"

namespace tributary::fuzz {
namespace {

constexpr std::size_t kMutations = 400;      // of each seed
constexpr std::size_t kLargest = 256 << 10;  // bytes of an input; longer ones are cut

// The input that is being tried, where the parent sees it whatever its child dies of.
struct Tried {
  std::size_t size = 0;
  std::byte bytes[kLargest];
};

void attempt(const Target& target, Tried& tried, std::span<const std::byte> input) {
  tried.size = std::min(input.size(), kLargest);
  std::ranges::copy(input.first(tried.size), tried.bytes);
  // A copy of exactly this size: a sanitizer catches a read past its end.
  const Bytes exact(tried.bytes, tried.bytes + tried.size);
  target.run(exact);
}

void run(const Target& target, Tried& tried, const std::vector<Bytes>& from) {
  attempt(target, tried, {});
  for (std::size_t i = 0; i < from.size(); ++i) {
    attempt(target, tried, from[i]);
    for (std::size_t m = 0; m < kMutations; ++m) {
      Mutations mutations(i * kMutations + m);
      attempt(target, tried, mutations.of(from[i], from[mutations.below(from.size())]));
    }
  }
}

}  // namespace
}  // namespace tributary::fuzz

int main(int argc, char** argv) {
  using namespace tributary::fuzz;
  const Target* const target = named_target(argc, argv);
  if (target == nullptr) return 2;
  const std::string name(target->name);
  void* const shared = ::mmap(nullptr, sizeof(Tried), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::cerr << "no memory for an input\n";
    return 1;
  }
  auto* const tried = new (shared) Tried;
  if (argc > 1) {
    std::ifstream file(argv[1], std::ios::binary);
    if (!file) {
      std::cerr << "cannot read " << argv[1] << "\n";
      return 1;
    }
    attempt(*target, *tried, bytes_of(std::string(std::istreambuf_iterator<char>(file), {})));
    return 0;
  }
  const std::vector<Bytes> from = target->seeds();
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) return 1;
    run(*target, *tried, from);
    return 0;
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    std::cerr << "no process for the inputs\n";
    return 1;
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    std::cout << name << ": " << 1 + from.size() * (1 + kMutations) << " inputs, no finding\n";
    return 0;
  }
  const std::string finding = name + ".finding";
  std::ofstream(finding, std::ios::binary)
      .write(reinterpret_cast<const char*>(tried->bytes), static_cast<std::streamsize>(tried->size));
  std::cerr << name << ": died of the input that is in " << std::filesystem::absolute(finding).string() << "\n";
  return 1;
}
