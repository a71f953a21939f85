// A job's configuration as JSON: from trainers, through workers to the coordinator and servers, and out of stores.
#include "common/config/job_json.h"
#include "common/math/encoding.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::job_json {

std::vector<Bytes> seeds() {
  JobConfig plain, other;
  plain.name = other.name = "mlp";
  other.mode = Mode::kSync;
  other.optimizer = default_optimizer("adamw");
  other.groups.resize(2);
  other.push = *parse_encoding("topk:0.01");
  return {bytes_of(to_canonical_json(plain)), bytes_of(to_canonical_json(other)), bytes_of(std::string_view("{}"))};
}

void run(std::span<const std::byte> bytes) {
  const std::string_view text = text_of(bytes);
  const Result<JobConfig> job = job_from_json(text);
  if (!job) return;
  const std::string canonical = to_canonical_json(*job);
  const Result<JobConfig> again = job_from_json(canonical);
  require(again.has_value(), "what was read is read when it is written again");
  require(to_canonical_json(*again) == canonical, "what is written again is the same");
  require(describe_any_config_difference(*job, *again).empty(), "nothing differs");
  require(same_training(text, canonical), "it is the same training");
}

Target target() {
  return {"job_json", seeds, run};
}

}  // namespace tributary::fuzz::job_json
