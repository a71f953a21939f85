// With libFuzzer: `fuzz NAME [OPTION...] [CORPUS]`. The target's seeds go into the corpus folder, the first argument
// that is no option, before it begins.
#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz_target.h"

static const tributary::fuzz::Target* chosen = nullptr;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  namespace fs = std::filesystem;
  chosen = tributary::fuzz::named_target(*argc, *argv);
  if (chosen == nullptr) std::exit(2);
  const std::span arguments(*argv + 1, static_cast<std::size_t>(*argc - 1));
  const auto folder = std::ranges::find_if(arguments, [](const char* argument) { return argument[0] != '-'; });
  if (folder == arguments.end() || !fs::is_directory(*folder)) return 0;
  for (std::size_t i = 0; const tributary::fuzz::Bytes& seed : chosen->seeds()) {
    std::ofstream file(fs::path(*folder) / ("seed-" + std::to_string(i++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run(std::as_bytes(std::span(data, size)));
  return 0;
}
