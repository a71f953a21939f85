// Drives a fuzz target where there is no fuzzer: its seeds, the files of the folder that is named, and mutations of
// each, which are the same in every run. What it dies of is a finding: the input is kept in the working directory.
//
//   fuzz_NAME [FOLDER]
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutations.h"

namespace tributary::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMutations = 1000;     // of each input
constexpr std::size_t kLargest = 256 << 10;  // bytes of an input

// The input that is being tried, where the parent sees it whatever its child dies of.
struct Tried {
  std::size_t size = 0;
  std::byte bytes[kLargest];
};

void attempt(Tried& tried, std::span<const std::byte> input) {
  tried.size = std::min(input.size(), kLargest);
  std::memcpy(tried.bytes, input.data(), tried.size);
  // Of its own, exactly: a sanitizer sees who reads past its end.
  const Bytes exact(tried.bytes, tried.bytes + tried.size);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(exact.data()), exact.size());
}

void run(Tried& tried, const std::vector<Bytes>& inputs) {
  attempt(tried, {});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    attempt(tried, inputs[i]);
    for (std::size_t m = 0; m < kMutations; ++m) {
      Mutations mutations(i * kMutations + m);
      attempt(tried, mutations.of(inputs[i], inputs[mutations.below(inputs.size())]));
    }
  }
}

std::vector<Bytes> files_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Bytes> files;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.push_back(bytes_of(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  return files;
}

}  // namespace
}  // namespace tributary::fuzz

int main(int argc, char** argv) {
  using namespace tributary::fuzz;
  const std::string name = fs::path(argv[0]).filename();
  std::vector<Bytes> inputs = seeds();
  if (argc > 1) {
    for (Bytes& file : files_in(argv[1])) inputs.push_back(std::move(file));
  }
  void* const shared = ::mmap(nullptr, sizeof(Tried), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::cerr << "no memory for an input\n";
    return 1;
  }
  auto* const tried = new (shared) Tried;
  const pid_t child = ::fork();
  if (child == 0) {
    run(*tried, inputs);
    return 0;
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    std::cerr << "no process for the inputs\n";
    return 1;
  }
  const std::size_t runs = 1 + inputs.size() * (1 + kMutations);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    std::cout << name << ": " << runs << " inputs, no finding\n";
    return 0;
  }
  const std::string finding = name + ".finding";
  std::ofstream(finding, std::ios::binary)
      .write(reinterpret_cast<const char*>(tried->bytes), static_cast<std::streamsize>(tried->size));
  std::cerr << name << ": died of the input that is in " << fs::absolute(finding).string() << "\n";
  return 1;
}
