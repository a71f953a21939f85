// Configuration files in TOML, and JSON: of a job, a server, a worker. All have one parser, so each input is read as
// all three.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::config {
namespace {

constexpr std::string_view kName = "it.toml";

template <class Config>
void must_be_told_where(const Result<Config>& config) {
  if (config) return;
  require(config.error().code == ErrorCode::kConfig && config.error().message.starts_with(std::string(kName) + ":"),
          "a refusal says where in the file");
}

}  // namespace

// The examples, which have every key, but for labs'; and a letter where a key would be.
std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const auto& entry : std::filesystem::directory_iterator(TRIBUTARY_SOURCE_DIR "/configs")) {
    if (entry.path().filename().string().starts_with("lab-")) continue;
    std::ifstream file(entry.path());
    all.push_back(bytes_of(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  std::ranges::sort(all);
  all.push_back(bytes_of(std::string_view("[job]\n\u00e9 = 1\n")));
  all.push_back(bytes_of(std::string_view(R"({"job": {"name": "j"}, "optimizer": {"lr": 1}, "groups": [{}]})")));
  return all;
}

void run(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  must_be_told_where(parse_server_config(text, kName));
  must_be_told_where(parse_worker_config(text, kName));
  const Result<JobConfig> job = parse_job_config(text, kName);
  must_be_told_where(job);
  // The first line again, as what is given to --set.
  const std::string overridden[] = {std::string(text.substr(0, text.find('\n')))};
  (void)parse_job_config(text, kName, overridden);
  if (!job) return;
  const Result<JobConfig> travelled = job_from_json(to_canonical_json(*job));
  require(travelled.has_value(), "a job that a file has can travel");
  require(describe_any_config_difference(*job, *travelled).empty(), "it arrives as it was");
}

Target target() {
  return {"config", seeds, run};
}

}  // namespace tributary::fuzz::config
