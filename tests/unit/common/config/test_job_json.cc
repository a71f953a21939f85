#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::job_json_test {
namespace {

using testing::contains;

JobConfig parsed(const std::string& toml) {
  return required(parse_job_config(toml, "job.toml"));
}

JobConfig some_job() {
  return parsed("job.name = 'j'\n[optimizer]\nname = 'adamw'\n[schedule]\nname = 'cosine'\ntotal_rounds = 100\n");
}

std::string refusal(std::string_view json, ErrorCode code = ErrorCode::kConfig) {
  const auto job = job_from_json(json);
  if (job) return "(accepted)";
  return job.error().code == code ? job.error().message : "(wrong code) " + job.error().message;
}

// Replaces the one occurrence of `from`.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

struct Change {
  const char* key;
  std::function<void(JobConfig&)> apply;
};

// A change of every key that the identity of a job has.
const std::vector<Change>& identity_changes() {
  static const std::vector<Change> changes = {
      {"job.name", [](JobConfig& c) { c.name = "other"; }},
      {"job.chunk_bytes", [](JobConfig& c) { c.chunk_bytes = 65536; }},
      {"encoding.push", [](JobConfig& c) { c.push = EncodingId::kBf16; }},
      {"encoding.pull", [](JobConfig& c) { c.pull = EncodingId::kFp16; }},
      {"optimizer.name", [](JobConfig& c) { c.optimizer.name = "adam"; }},
      {"optimizer.lr", [](JobConfig& c) { c.optimizer.lr *= 1 + 1e-15; }},
      {"optimizer.weight_decay", [](JobConfig& c) { c.optimizer.weight_decay = 0.1; }},
      {"optimizer.beta1", [](JobConfig& c) { c.optimizer["beta1"] = 0.5; }},
      {"optimizer.beta2", [](JobConfig& c) { c.optimizer["beta2"] = 0.5; }},
      {"optimizer.eps", [](JobConfig& c) { c.optimizer["eps"] = 1e-7; }},
      {"schedule.name", [](JobConfig& c) { c.schedule.kind = ScheduleKind::kLinear; }},
      {"schedule.warmup_rounds", [](JobConfig& c) { c.schedule.warmup_rounds = 1; }},
      {"schedule.total_rounds", [](JobConfig& c) { c.schedule.total_rounds = 101; }},
      {"schedule.min_lr_ratio", [](JobConfig& c) { c.schedule.min_lr_ratio = 0.5; }},
      {"schedule.step_rounds", [](JobConfig& c) { c.schedule.step_rounds = 1; }},
      {"schedule.step_gamma", [](JobConfig& c) { c.schedule.step_gamma = 0.5; }},
      {"train.hidden",
       [](JobConfig& c) {
         c.train.hidden = {256, 127};
       }},
      {"train.global_batch", [](JobConfig& c) { c.train.global_batch = 128; }},
      {"train.accumulation", [](JobConfig& c) { c.train.accumulation = 2; }},
      {"train.seed", [](JobConfig& c) { c.train.seed = 2; }},
      {"job.mode", [](JobConfig& c) { c.mode = Mode::kAllreduce; }},
  };
  return changes;
}

const std::vector<Change>& ignorable_changes() {
  static const std::vector<Change> changes = {
      {"train.epochs", [](JobConfig& c) { c.train.epochs = 99; }},
      {"train.max_rounds", [](JobConfig& c) { c.train.max_rounds = 99; }},
      {"train.eval_every_epochs", [](JobConfig& c) { c.train.eval_every_epochs = 99; }},
      {"train.data_dir", [](JobConfig& c) { c.train.data_dir = "/elsewhere"; }},
      {"snapshot.every_s", [](JobConfig& c) { c.snapshot.every_s = 99; }},
      {"checkpoint.dir", [](JobConfig& c) { c.checkpoint.dir = "/elsewhere"; }},
      {"checkpoint.every_s", [](JobConfig& c) { c.checkpoint.every_s = 99; }},
      {"checkpoint.keep", [](JobConfig& c) { c.checkpoint.keep = 99; }},
      {"recovery.redo_mb", [](JobConfig& c) { c.recovery.redo_mb = 99; }},
      {"snapshot.every_rounds", [](JobConfig& c) { c.snapshot.every_rounds = 99; }},
  };
  return changes;
}

}  // namespace

TEST_CASE("a job's canonical JSON has every section and key, sorted, with its value or default, in these bytes") {
  // Stores keep it: a later release may add keys with defaults, and change nothing else.
  CHECK(
      to_canonical_json(some_job()) ==
      R"({"allreduce":{"algorithm":"hierarchical"},"checkpoint":{"dir":"","every_s":600,"keep":2},)"
      R"("encoding":{"pull":"fp32","push":"fp32"},)"
      R"("gate":{"backoff_factor":0.5,"clip_norm":0.0,"growth_factor":2.0,"growth_interval":2000,"init_scale":65536.0,)"
      R"("loss_scale":"none"},)"
      R"("job":{"chunk_bytes":0,"mode":"sync","name":"j"},)"
      R"("local":{"beta1":0.9,"beta2":0.999,"dampening":0.0,"eps":1e-08,"initial_accumulator":0.0,"keep_state":true,)"
      R"("lr":0.01,"lr_decay":0.0,"momentum":0.0,"nesterov":false,"optimizer":"sgd","steps":0,"weight_decay":0.0},)"
      R"("membership":{"min_nodes":1,"on_server_loss":"wait","on_state_lost":"continue","on_worker_loss":"wait","rejoin_ms":10000},)"
      R"("optimizer":{"beta1":0.9,"beta2":0.999,"dampening":0.0,"eps":1e-08,"initial_accumulator":0.0,"lr":0.001,)"
      R"("lr_decay":0.0,"momentum":0.0,"name":"adamw","nesterov":false,"weight_decay":0.01},)"
      R"("recovery":{"redo_mb":256},)"
      R"("schedule":{"min_lr_ratio":0.0,"name":"cosine","step_gamma":0.1,"step_rounds":0,"total_rounds":100,"warmup_rounds":0},)"
      R"("snapshot":{"copies":0,"every_rounds":0,"every_s":60},)"
      R"("ssp":{"staleness":3},)"
      R"("sync":{"deadline_ms":0},)"
      R"("train":{"accumulation":1,"dataset":"fashion-mnist","epochs":5,"eval_every_epochs":1,"global_batch":256,)"
      R"("hidden":[256,128],"max_rounds":0,"seed":1}})");
}

TEST_CASE("each key of each optimizer belongs to a job's identity, and survives the way to JSON and back") {
  for (const kernels::OptimizerKind& kind : kernels::optimizer_kinds()) {
    for (const kernels::OptionKey& key : kind.own_keys()) {
      CAPTURE(kind.name);
      CAPTURE(key.name);
      JobConfig job = some_job();
      job.optimizer = default_optimizer(kind.name);
      JobConfig changed = job;
      changed.optimizer[key.name] = key.standard == 0.0 ? 1.0 : 0.5 * key.standard;
      CHECK(contains(describe_config_difference(job, changed), "optimizer." + std::string(key.name)));
      const auto back = job_from_json(to_canonical_json(changed));
      if (key.kind == kernels::OptionKey::Kind::kFlag || key.standard == 0.0)
        continue;  // impossible alone, some of them
      REQUIRE_MESSAGE(back, back.error().message);
      CHECK(back->optimizer == changed.optimizer);
    }
  }
}

TEST_CASE("equal jobs have equal JSON however their TOML is written") {
  const JobConfig a = parsed("[optimizer]\nlr = 1\nname = 'sgd'\n[job]\nname = 'j'\n");
  const JobConfig b = parsed("job = {mode = 'sync', name = \"j\"}\noptimizer.lr = 1.0\n");
  CHECK(to_canonical_json(a) == to_canonical_json(b));
}

TEST_CASE("a job survives the way to JSON and back, with the same bits in every number") {
  std::mt19937_64 random(5);
  auto real = [&random] { return std::generate_canonical<double, 53>(random); };
  for (int repeat = 0; repeat < 200; ++repeat) {
    JobConfig job = some_job();
    job.chunk_bytes = 4096 + 64 * (random() % 1000);
    job.push = static_cast<EncodingId>(random() % 3);
    job.optimizer.lr = std::ldexp(real() + 1e-9, static_cast<int>(random() % 60) - 30);
    job.optimizer["beta1"] = real();
    job.optimizer["eps"] = std::ldexp(1.0 + real(), -140);
    job.schedule.min_lr_ratio = real();
    job.snapshot.every_rounds = random();
    job.train.seed = random();
    job.train.hidden.assign(random() % 5, static_cast<std::uint32_t>(random() % 1000 + 1));
    job.train.data_dir = "/only/here";
    const auto back = required(job_from_json(to_canonical_json(job)));
    CHECK(to_canonical_json(back) == to_canonical_json(job));
    CHECK(back.optimizer.lr == job.optimizer.lr);
    CHECK(back.optimizer["beta1"] == job.optimizer["beta1"]);
    CHECK(back.optimizer["eps"] == job.optimizer["eps"]);
    CHECK(back.train.seed == job.train.seed);
    CHECK(back.train.hidden == job.train.hidden);
    CHECK(back.push == job.push);
    CHECK(back.train.data_dir == TrainConfig{}.data_dir);
  }
}

TEST_CASE("absent keys take their defaults, the chosen optimizer's among them") {
  const auto job = job_from_json(R"({"job":{"name":"j"},"optimizer":{"name":"lion"}})");
  REQUIRE_MESSAGE(job, job.error().message);
  CHECK(job->optimizer["beta2"] == 0.99);
  CHECK(job->train.global_batch == TrainConfig{}.global_batch);
  CHECK(same_training(R"({"job":{"name":"j"},"optimizer":{"name":"lion"}})", to_canonical_json(*job)));
}

TEST_CASE("bytes that are no job are refused, whatever they are") {
  for (const char* text : {"", "{", "[]", "7", "null", "{\"job\":", "\xff\xfe", "{'job':1}", "{\"a\":1e999}"}) {
    CHECK(contains(refusal(text, ErrorCode::kMalformed), "no JSON object"));
  }
  CHECK(contains(refusal(std::string(kMaxJobJson + 1, ' '), ErrorCode::kMalformed), "the limit is 1048576"));
  CHECK(contains(refusal(std::string(kMaxJobJson, '['), ErrorCode::kMalformed), "no JSON object"));
  const std::string deep = "{\"job\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  CHECK(contains(refusal(deep, ErrorCode::kMalformed), "no JSON object"));
  CHECK(contains(refusal("{\"job\":[[7]]}"), "job = [[7]]: must be an object"));

  // Cut anywhere, or with any byte changed: accepted as something valid or refused, and no more.
  const std::string good = to_canonical_json(some_job());
  std::mt19937_64 random(6);
  for (std::size_t cut = 0; cut < good.size(); ++cut) CHECK_FALSE(job_from_json(good.substr(0, cut)));
  int refused = 0;
  for (int repeat = 0; repeat < 3000; ++repeat) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random());
    const auto job = job_from_json(bad);
    if (job) CHECK(job_from_json(to_canonical_json(*job)));
    refused += !job;
  }
  CHECK(refused > 1000);
}

TEST_CASE("unknown keys, wrong types and impossible values from a peer are refused by name") {
  const std::string good = to_canonical_json(some_job());
  auto with = [&good](const std::string& from, const std::string& to) { return refusal(replaced(good, from, to)); };
  CHECK(contains(with("\"lr\":0.001", "\"lr\":0.001,\"rl\":1"), "unknown key \"rl\" in optimizer"));
  CHECK(contains(with("\"train\":{", "\"zebra\":{},\"train\":{"), "unknown section \"zebra\""));
  CHECK(contains(with("\"seed\":1", "\"data_dir\":\"/x\",\"seed\":1"), "unknown key \"data_dir\" in train"));
  CHECK(contains(with("\"lr\":0.001", "\"lr\":\"x\""), "optimizer.lr = \"x\": must be a number"));
  CHECK(contains(with("\"lr\":0.001", "\"lr\":null"), "optimizer.lr = null: must be a number"));
  CHECK(contains(with("\"lr\":0.001", "\"lr\":-1"), "optimizer.lr = -1.0: must be a finite number above 0"));
  CHECK(contains(with("\"nesterov\":false,\"weight", "\"nesterov\":0,\"weight"),
                 "optimizer.nesterov = 0: must be true or false"));
  CHECK(contains(with("\"epochs\":5", "\"epochs\":-5"), "train.epochs = -5: must be a whole number"));
  CHECK(contains(with("\"epochs\":5", "\"epochs\":5.5"), "train.epochs = 5.5: must be a whole number"));
  CHECK(contains(with("\"epochs\":5", "\"epochs\":4294967296"), "must be a whole number from 0 to 4294967295"));
  CHECK(contains(with("\"epochs\":5", "\"epochs\":0"), "train.epochs = 0: must be at least 1"));
  CHECK(contains(with("[256,128]", "[256,-1]"), "train.hidden = [256,-1]: must be an array of whole numbers"));
  CHECK(contains(with("[256,128]", "[256,0]"), "every layer must have"));
  CHECK(contains(with("\"push\":\"fp32\"", "\"push\":\"fp8\""), "encoding.push = \"fp8\": must be"));
  CHECK(contains(with("\"name\":\"j\"", "\"name\":\"../j\""), "job.name = \"../j\": must consist of"));
  CHECK(contains(with("\"name\":\"j\"", "\"name\":7"), "job.name = 7: must be a string"));
  CHECK(refusal(good) == "(accepted)");
  CHECK(refusal(replaced(good, "\"j\"", "\"" + std::string(100000, 'x') + "\"")).size() < 300);
}

TEST_CASE("the difference sees every key that decides the training, and names it with both values") {
  const JobConfig ours = some_job();
  for (const Change& change : identity_changes()) {
    JobConfig theirs = ours;
    change.apply(theirs);
    CAPTURE(change.key);
    const std::string text = describe_config_difference(to_canonical_json(ours), to_canonical_json(theirs));
    CHECK(contains(text, std::string(change.key) + " is "));
    CHECK_FALSE(same_training(to_canonical_json(ours), to_canonical_json(theirs)));
  }
  JobConfig theirs = ours;
  theirs.optimizer.lr = 0.25;
  theirs.train.seed = 5;  // a later key
  CHECK(describe_config_difference(to_canonical_json(ours), to_canonical_json(theirs)) ==
        "optimizer.lr is 0.001 in the job, but 0.25 in your configuration; use the same job file everywhere, or give a "
        "different job another job.name");
}

TEST_CASE("where the data lies, how long training goes on and how often it is saved is no difference") {
  const JobConfig ours = some_job();
  for (const Change& change : ignorable_changes()) {
    JobConfig theirs = ours;
    change.apply(theirs);
    CAPTURE(change.key);
    CHECK(is_ignorable_key(change.key));
    CHECK(same_training(to_canonical_json(ours), to_canonical_json(theirs)));
  }
  for (const Change& change : identity_changes()) CHECK_FALSE(is_ignorable_key(change.key));
}

TEST_CASE("an unreadable configuration is a difference and says whose it is") {
  const std::string good = to_canonical_json(some_job());
  CHECK(contains(describe_config_difference(good, "{"), "your configuration cannot be read"));
  CHECK(contains(describe_config_difference("", good), "the job's own configuration cannot be read"));
  CHECK(contains(describe_config_difference(good, replaced(good, "\"seed\"", "\"sead\"")),
                 "unknown key \"sead\" in train"));
}

}  // namespace tributary::job_json_test
