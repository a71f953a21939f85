#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/config/config_check.h"
#include "common/config/config_toml.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::config_test {
namespace {

using testing::contains;
using testing::TempDir;

template <class T>
std::string refusal(const Result<T>& result) {
  if (result) return "(accepted)";
  return result.error().code == ErrorCode::kConfig ? result.error().message : "(wrong code)";
}

std::string job_refusal(const std::string& text) {
  return refusal(parse_job_config(text, "job.toml"));
}
// One key in an otherwise good job; the key is on line 3.
std::string key_refusal(const std::string& section, const std::string& line) {
  if (section == "job") return job_refusal("[job]\nname = 'j'\n" + line + "\n");
  return job_refusal("job.name = 'j'\n[" + section + "]\n" + line + "\n");
}
std::string server_refusal(const std::string& text) {
  return refusal(parse_server_config(text, "server.toml"));
}
std::string worker_refusal(const std::string& text) {
  return refusal(parse_worker_config(text, "worker.toml"));
}

std::string override_refusal(const std::vector<std::string>& overrides,
                             const std::string& text = "[job]\nname = 'j'\n[optimizer]\nname = 'adamw'\n") {
  return refusal(parse_job_config(text, "job.toml", overrides));
}

std::string example(const std::string& name) {
  return TRIBUTARY_SOURCE_DIR "/configs/" + name;
}

}  // namespace

TEST_CASE("a job may be JSON, and is checked as its TOML would be") {
  const auto job = required(parse_job_config(R"(
    {"job": {"name": "j"}, "optimizer": {"name": "adamw", "lr": 1}, "train": {"hidden": [3, 4], "data_dir": "/d"},
     "groups": [{"weight_decay": 0.5}, {}]})",
                                             "job", {}));
  CHECK(job.optimizer.lr == 1.0);
  CHECK(job.train.hidden == std::vector<std::uint32_t>{3, 4});
  CHECK(job.train.data_dir == "/d");
  REQUIRE(job.groups.size() == 2);
  CHECK(job.groups[0].weight_decay == 0.5);

  const auto told = [](const std::string& sections) {
    return refusal(parse_job_config("{\"job\": {\"name\": \"j\"}, " + sections + "}", "job"));
  };
  const std::string useless = told(R"("optimizer": {"name": "adamw", "momentum": 0.9})");
  CHECK_MESSAGE(useless.starts_with("job: optimizer.momentum = 0.9: "), useless);
  CHECK(contains(told(R"("optimizer": {"lr": -1})"), "job: optimizer.lr = -1: "));
  CHECK(contains(told(R"("optimizer": {"lr": null})"), "optimizer.lr = 'null': must be a number, is a string"));
  CHECK(contains(told(R"("optimiser": {"lr": 1})"), "did you mean [optimizer]?"));
  CHECK(contains(told(R"("train": {"seed": 18446744073709551615})"), "train.seed = '18446744073709551615'"));
  CHECK(contains(told(R"("groups": [{"lr": "x"}])"), "groups[0].lr = 'x': must be a number"));
  CHECK(contains(told(R"("groups": [1])"), "'groups'"));
  CHECK(contains(told(R"("train": {"seed": [[[[[[1]]]]]]})"), "must be a JSON object of sections"));
  CHECK(contains(refusal(parse_job_config("{\"job\":", "job")), "job: not valid JSON: "));
}

TEST_CASE("the example files are accepted and say the defaults that they claim to say") {
  const auto server = required(load_server_config(example("server.toml")));
  CHECK(server.bind == ServerConfig{}.bind);
  CHECK(server.store_path == "/var/lib/tributary/server-0");
  CHECK(server.store_io_mb_per_s == ServerConfig{}.store_io_mb_per_s);
  CHECK(server.stop_timeout_s == ServerConfig{}.stop_timeout_s);

  const auto worker = required(load_worker_config(example("worker.toml")));
  CHECK(worker.socket == "/run/user/1000/tributary/worker.sock");  // as a comment there says
  CHECK(worker.name == "node-0");
  CHECK(worker.peer_timeout_ms == WorkerConfig{}.peer_timeout_ms);
  CHECK(worker.node_reduction == WorkerConfig{}.node_reduction);
  CHECK(worker.collective_timeout_ms == WorkerConfig{}.collective_timeout_ms);
  CHECK(worker.nccl == WorkerConfig{}.nccl);

  const auto job = required(load_job_config(example("fashion-mnist.toml")));
  CHECK(job.optimizer.name == "adamw");
  CHECK(job.schedule.total_rounds == 1880);
  CHECK(job.train.hidden == std::vector<std::uint32_t>{256, 128});

  const auto ring = required(load_job_config(example("fashion-mnist-allreduce.toml")));
  CHECK(ring.mode == Mode::kAllreduce);
  CHECK(ring.allreduce.algorithm == AllreduceAlgorithm::kHierarchical);
  CHECK(ring.optimizer.lr == job.optimizer.lr);
  CHECK(ring.train.hidden == job.train.hidden);

  const auto local = required(load_job_config(example("fashion-mnist-diloco.toml")));
  CHECK(local.mode == Mode::kLocalSgd);
  CHECK(local.local.steps == 50);
  CHECK(local.local.optimizer.name == "adamw");
  CHECK(local.optimizer["nesterov"]);

  const auto wide = required(load_job_config(example("fashion-mnist-wide.toml")));
  std::uint64_t parameters = 0, inputs = 28 * 28;
  for (const std::uint64_t units : wide.train.hidden) parameters += (std::exchange(inputs, units) + 1) * units;
  CHECK(parameters > 4'000'000);

  const auto sgd = required(load_job_config(example("fashion-mnist-sgd.toml")));
  CHECK(sgd.optimizer["nesterov"]);
  CHECK(sgd.push == EncodingId::kBf16);
  CHECK(sgd.pull == EncodingId::kFp32);
  CHECK(sgd.train.global_batch == TrainConfig{}.global_batch);
}

TEST_CASE("every key of a server's file reaches its member") {
  const auto c = required(parse_server_config(R"(
[server]
index = 1
servers = 3
coordinator = "tcp://10.0.0.1:7000"
bind = "tcp://10.0.0.2:7100"
advertise = "node2.example"
lanes = 4
admin = ""
bandwidth = 2.5
[store]
path = "/data"
io_mb_per_s = 50
[limits]
heartbeat_ms = 200
peer_timeout_ms = 900
stop_timeout_s = 7
max_memory = 6000000000
[log]
level = "debug"
file = "/tmp/x.log"
)",
                                              "server.toml"));
  CHECK(c.index == 1);
  CHECK(c.servers == 3);
  CHECK(c.coordinators == std::vector<std::string>{"tcp://10.0.0.1:7000"});
  CHECK(c.bind == "tcp://10.0.0.2:7100");
  CHECK(c.advertise == "node2.example");
  CHECK(c.lanes == 4);
  CHECK(c.admin.empty());
  CHECK(c.bandwidth == 2.5);
  CHECK(c.store_path == "/data");
  CHECK(c.store_io_mb_per_s == 50);
  CHECK(c.heartbeat_ms == 200);
  CHECK(c.peer_timeout_ms == 900);
  CHECK(c.stop_timeout_s == 7);
  CHECK(c.max_memory == 6000000000);
  CHECK(c.log.level == "debug");
  CHECK(c.log.file == "/tmp/x.log");
}

TEST_CASE("every key of a worker's file reaches its member") {
  const auto c = required(parse_worker_config(R"(
worker = {coordinator = "ipc:///tmp/c", name = "n1", socket = "/tmp/w", admin = "[::1]:80", lanes = 2, node_reduction = "device"}
device = {collective_timeout_ms = 5000, nccl = "always"}
limits = {window_bytes = 1048576, max_shared_memory = 5000000000, heartbeat_ms = 3, peer_timeout_ms = 6, stop_timeout_s = 1}
log.level = "error"
log.file = "w.log"
)",
                                              "worker.toml"));
  CHECK(c.coordinators == std::vector<std::string>{"ipc:///tmp/c"});
  CHECK(c.name == "n1");
  CHECK(c.socket == "/tmp/w");
  CHECK(c.admin == "[::1]:80");
  CHECK(c.lanes == 2);
  CHECK(c.node_reduction == NodeReduction::kDevice);
  CHECK(c.collective_timeout_ms == 5000);
  CHECK(c.nccl == NcclUse::kAlways);
  CHECK(c.window_bytes == 1048576);
  CHECK(c.max_shared_memory == 5000000000);
  CHECK(c.heartbeat_ms == 3);
  CHECK(c.peer_timeout_ms == 6);
  CHECK(c.stop_timeout_s == 1);
  CHECK(c.log.level == "error");
  CHECK(c.log.file == "w.log");
}

TEST_CASE("every key of a job's file reaches its member") {
  const auto c = required(parse_job_config(R"(
job = {name = "Job_1.a-b", mode = "sync", chunk_bytes = 131072}
encoding = {push = "fp16", pull = "bf16"}
optimizer = {name = "sgd", lr = 1, weight_decay = 0.5, momentum = 0.25, dampening = 0.125, nesterov = false}
schedule = {name = "linear", warmup_rounds = 5, total_rounds = 50, min_lr_ratio = 0.5}
snapshot = {every_s = 9, every_rounds = 8}
checkpoint = {dir = "/c", every_s = 7, keep = 6}
train = {dataset = "fashion-mnist", data_dir = "/d", hidden = [3, 2, 1], epochs = 2, global_batch = 12, accumulation = 3, seed = 11, max_rounds = 4, eval_every_epochs = 6}
)",
                                           "job.toml"));
  CHECK(c.name == "Job_1.a-b");
  CHECK(c.chunk_bytes == 131072);
  CHECK(c.push == EncodingId::kFp16);
  CHECK(c.pull == EncodingId::kBf16);
  CHECK(c.optimizer.lr == 1.0);
  CHECK(c.optimizer.weight_decay == 0.5);
  CHECK(c.optimizer["momentum"] == 0.25);
  CHECK(c.optimizer["dampening"] == 0.125);
  CHECK(c.schedule.kind == ScheduleKind::kLinear);
  CHECK(c.schedule.warmup_rounds == 5);
  CHECK(c.schedule.total_rounds == 50);
  CHECK(c.schedule.min_lr_ratio == 0.5);
  CHECK(c.snapshot.every_s == 9);
  CHECK(c.snapshot.every_rounds == 8);
  CHECK(c.checkpoint.dir == "/c");
  CHECK(c.checkpoint.every_s == 7);
  CHECK(c.checkpoint.keep == 6);
  CHECK(c.train.data_dir == "/d");
  CHECK(c.train.hidden == std::vector<std::uint32_t>{3, 2, 1});
  CHECK(c.train.epochs == 2);
  CHECK(c.train.global_batch == 12);
  CHECK(c.train.accumulation == 3);
  CHECK(c.train.seed == 11);
  CHECK(c.train.max_rounds == 4);
  CHECK(c.train.eval_every_epochs == 6);
}

TEST_CASE("each optimizer has its own defaults, and a key given wins over them") {
  auto parse = [](const std::string& optimizer) {
    const auto c = required(parse_job_config("job.name = 'j'\n[optimizer]\n" + optimizer, "job.toml"));
    return c.optimizer;
  };
  CHECK(parse("").name == "sgd");
  CHECK(parse("name = 'sgd'").lr == 0.01);
  CHECK(parse("name = 'sgd'")["momentum"] == 0.0);
  CHECK(parse("name = 'adam'").lr == 0.001);
  CHECK(parse("name = 'adam'").weight_decay == 0.0);
  CHECK(parse("name = 'adam'")["beta2"] == 0.999);
  CHECK(parse("name = 'adam'")["eps"] == 1e-8);
  CHECK(parse("name = 'adamw'").lr == 0.001);
  CHECK(parse("name = 'adamw'").weight_decay == 0.01);
  CHECK(parse("name = 'adagrad'").lr == 0.01);
  CHECK(parse("name = 'adagrad'")["eps"] == 1e-10);
  CHECK(parse("name = 'lion'")["beta2"] == 0.99);
  CHECK(parse("name = 'lion'").lr == 0.0001);
  CHECK(parse("lr = 0.5\nweight_decay = 0\nname = 'adamw'").weight_decay == 0.0);
  CHECK(parse("lr = 0.5\nweight_decay = 0\nname = 'adamw'").lr == 0.5);
}

TEST_CASE("a misspelt key or section is refused with its line and the name that was meant") {
  CHECK(job_refusal("[job]\nname = 'j'\n\n[optimizer]\nlearning_rate = 0.1\n") ==
        "job.toml:5: unknown key 'learning_rate' in [optimizer]; the keys of [optimizer] are name, lr, weight_decay, "
        "momentum, dampening, nesterov, beta1, beta2, eps, lr_decay, initial_accumulator");
  CHECK(key_refusal("optimizer", "momentun = 0.9") ==
        "job.toml:3: unknown key 'momentun' in [optimizer]; did you mean 'momentum'?");
  CHECK(key_refusal("optimzer", "lr = 0.1") == "job.toml:2: unknown section [optimzer]; did you mean [optimizer]?");
  CHECK(contains(key_refusal("zebra", "lr = 0.1"),
                 "job.toml:2: unknown section [zebra]; the sections are allreduce, checkpoint, encoding, gate, job"));
  CHECK(key_refusal("job", "epochs = 3") ==
        "job.toml:3: unknown key 'epochs' in [job]; 'epochs' belongs under [train]");
  CHECK(job_refusal("seed = 3\n[job]\nname = 'j'\n") ==
        "job.toml:1: key 'seed' is in no section; 'seed' belongs under [train]");
  CHECK(contains(job_refusal("job = 'j'\n"), "job.toml:1: 'job' is a section: write [job]"));
  CHECK(contains(job_refusal("[[job]]\nname = 'j'\n"), "'job' is a section"));
  CHECK(contains(server_refusal("[server]\nindex = 0\ncordinator = 'tcp://a:1'\n"),
                 "server.toml:3: unknown key 'cordinator'"));
  CHECK(contains(server_refusal("[server]\nindex = 0\ncordinator = 'tcp://a:1'\n"), "did you mean 'coordinator'?"));
  CHECK(contains(worker_refusal("[worker]\nsockets = '/tmp/x'\n"), "did you mean 'socket'?"));
}

TEST_CASE("a value of the wrong type is refused with the value and the right type") {
  CHECK(key_refusal("optimizer", "lr = '0.1'") == "job.toml:3: optimizer.lr = '0.1': must be a number, is a string");
  CHECK(key_refusal("train", "epochs = 2.5") == "job.toml:3: train.epochs = 2.5: must be a whole number, is a number");
  CHECK(key_refusal("train", "epochs = 2.0") == "job.toml:3: train.epochs = 2.0: must be a whole number, is a number");
  CHECK(key_refusal("optimizer", "nesterov = 1") ==
        "job.toml:3: optimizer.nesterov = 1: must be true or false, is a whole number");
  CHECK(
      contains(key_refusal("schedule", "name = true"), "job.toml:3: schedule.name = true: must be a string in quotes"));
  CHECK(contains(key_refusal("train", "hidden = 256"),
                 "job.toml:3: train.hidden = 256: must be an array of whole numbers"));
  CHECK(contains(key_refusal("train", "hidden = [256, 'x']"), "must be an array of whole numbers"));
  CHECK(contains(key_refusal("train", "hidden = [256, -1]"), "must be an array of whole numbers"));
  CHECK(contains(key_refusal("encoding", "push = 'fp8'"),
                 "encoding.push = 'fp8': must be one of fp32, bf16, fp16, int8, topk:R"));
  CHECK(contains(key_refusal("encoding", "pull = 16"), "encoding.pull = 16: must be"));
  CHECK(contains(key_refusal("train", "epochs = 1979-05-27"), "is a date or time"));
  CHECK(key_refusal("train", "epochs = -1") == "job.toml:3: train.epochs = -1: must be from 0 to 4294967295");
  CHECK(contains(key_refusal("train", "epochs = 4294967296"), "must be from 0 to 4294967295"));
  CHECK(contains(server_refusal("[server]\nlanes = 65536\n"),
                 "server.toml:2: server.lanes = 65536: must be from 0 to 65535"));
  const std::string long_value = key_refusal("optimizer", "lr = '" + std::string(5000, 'x') + "'");
  CHECK(contains(long_value, "xxx...: must be a number"));
  CHECK(long_value.size() < 300);
}

TEST_CASE("impossible values of a job are refused with the value and what would be right") {
  const std::vector<std::vector<std::string>> cases = {
      {"job", "chunk_bytes = 100000", "chunk_bytes = 100000: must be a multiple of 64 from 4096 to 67108864"},
      {"job", "chunk_bytes = 64", "must be a multiple of 64 from 4096"},
      {"job", "chunk_bytes = 134217728", "must be a multiple of 64"},
      {"allreduce", "algorithm = 'flat'", "allreduce.algorithm = 'flat': mode \"sync\" has no all-reduce"},
      {"job", "mode = 'asink'", "job.mode = 'asink': must be one of sync, ssp, async, local_sgd or allreduce"},
      {"ssp", "staleness = 2", "ssp.staleness = 2: mode \"sync\" knows no staleness"},
      {"optimizer", "lr = 0", "optimizer.lr = 0: must be a finite number above 0"},
      {"optimizer", "lr = -0.5", "optimizer.lr = -0.5: must be"},
      {"optimizer", "lr = nan", "optimizer.lr = nan: must be"},
      {"optimizer", "lr = inf", "optimizer.lr = inf: must be"},
      {"optimizer", "weight_decay = -1", "weight_decay = -1: must be 0 or"},
      {"optimizer", "momentum = 1.0", "momentum = 1.0: must be in [0, 1)"},
      {"optimizer", "momentum = nan", "momentum = nan: must be in [0, 1)"},
      {"optimizer", "dampening = 2", "dampening = 2: must be in [0, 1]"},
      {"optimizer", "nesterov = true", "optimizer.nesterov = true: needs momentum"},
      {"optimizer", "nesterov = true\nmomentum = 0.9\ndampening = 0.1",
       "optimizer.nesterov = true: needs dampening = 0"},
      {"optimizer", "name = 'sdg'", "optimizer.name = 'sdg': must be one of sgd, adam, adamw, adagrad, lion or mean"},
      {"optimizer", "beta1 = 1\nname = 'adam'", "beta1 = 1: must be in [0, 1)"},
      {"optimizer", "beta2 = -0.1\nname = 'lion'", "beta2 = -0.1: must be in [0, 1)"},
      {"optimizer", "eps = 0\nname = 'adamw'", "eps = 0: must be a finite number above 0"},
      {"optimizer", "lr_decay = -1\nname = 'adagrad'", "lr_decay = -1: must be 0 or"},
      {"optimizer", "initial_accumulator = nan\nname = 'adagrad'", "initial_accumulator = nan: must be 0 or"},
      // Steps are computed in fp32.
      {"optimizer", "lr = 1e39", "optimizer.lr = 1e+39: is inf in fp32"},
      {"optimizer", "lr = 1e-50", "optimizer.lr = 1e-50: is 0.000000 in fp32"},
      {"optimizer", "eps = 1e-50\nname = 'adamw'", "optimizer.eps = 1e-50: is 0.000000 in fp32"},
      {"optimizer", "weight_decay = 1e39", "weight_decay = 1e+39: is inf in fp32"},
      {"optimizer", "weight_decay = 1e-50", "weight_decay = 1e-50: is 0.000000 in fp32"},
      {"optimizer", "momentum = 0.999999999", "momentum = 0.999999999: is 1.000000 in fp32"},
      {"optimizer", "beta2 = 0.999999999\nname = 'adam'", "beta2 = 0.999999999: is 1.000000 in fp32"},
      {"optimizer", "lr_decay = 1e39\nname = 'adagrad'", "lr_decay = 1e+39: is inf in fp32"},
      {"optimizer", "initial_accumulator = 1e39\nname = 'adagrad'", "initial_accumulator = 1e+39: is inf in fp32"},
      {"gate", "clip_norm = 1e-50", "gate.clip_norm = 1e-50: is 0.000000 in fp32"},
      {"checkpoint", "dir = 'here'", "checkpoint.dir = 'here': must be an absolute path of at most 2048 bytes"},
      {"schedule", "name = 'cosin'", "schedule.name = 'cosin': must be one of constant, linear, cosine or step"},
      {"schedule", "name = 'cosine'", "schedule.total_rounds is not set: the cosine schedule needs the round"},
      {"schedule", "name = 'linear'", "schedule.total_rounds is not set: the linear schedule needs the round"},
      {"schedule", "total_rounds = 5\nwarmup_rounds = 5\nname = 'linear'", "must be more than warmup_rounds (5)"},
      {"schedule", "min_lr_ratio = 1.5\ntotal_rounds = 5\nname = 'linear'", "min_lr_ratio = 1.5: must be in [0, 1]"},
      {"schedule", "name = 'step'", "schedule.step_rounds is not set: the step schedule needs"},
      {"schedule", "step_gamma = 0\nstep_rounds = 1\nname = 'step'", "step_gamma = 0: must be in (0, 1]"},
      {"train", "dataset = 'fashion'", "dataset = 'fashion': the only one there is: fashion-mnist"},
      {"train", "data_dir = ''", "data_dir = '': must name the folder"},
      {"train", "hidden = [256, 0]", "every layer must have from 1 to 1048576 units"},
      {"train", "hidden = [2000000]", "every layer must have from 1 to 1048576 units"},
      {"train", "epochs = 0", "epochs = 0: must be at least 1"},
      {"train", "global_batch = 0", "global_batch = 0: must be at least 1"},
      {"train", "accumulation = 0", "accumulation = 0: must be at least 1"},
      {"train", "global_batch = 10\naccumulation = 3", "global_batch = 10: must be a multiple of accumulation (3)"},
      {"train", "eval_every_epochs = 0", "eval_every_epochs = 0: must be at least 1"},
  };
  for (const auto& c : cases) {
    const std::string text = key_refusal(c[0], c[1]);
    CAPTURE(text);
    CHECK(text.starts_with("job.toml:3: "));
    CHECK(contains(text, c[2]));
  }
}

TEST_CASE("modes with clocks: what goes together, and what is refused with the reason") {
  const auto of_mode = [](const std::string& mode, const std::string& rest) {
    return job_refusal("[job]\nname = 'j'\nmode = '" + mode + "'\n" + rest);
  };
  CHECK(of_mode("ssp", "[ssp]\nstaleness = 0\n") == "(accepted)");
  CHECK(of_mode("async", "[encoding]\npush = 'bf16'\npull = 'fp16'\n") == "(accepted)");
  CHECK(of_mode("async", "[ssp]\nstaleness = 2\n") ==
        "job.toml:5: ssp.staleness = 2: mode \"async\" has no bound on staleness: remove the key or set job.mode to "
        "\"ssp\"");
  CHECK(contains(of_mode("allreduce", "[checkpoint]\ndir = '/c'\n"), "must be empty with mode \"allreduce\""));
  CHECK(contains(of_mode("allreduce", "[allreduce]\nalgorithm = 'hierachical'\n"),
                 "allreduce.algorithm = 'hierachical': must be one of flat or hierarchical"));
  CHECK(contains(of_mode("allreduce", "[encoding]\npush = 'int8'\n"), "must be fp32 with mode \"allreduce\""));
  CHECK(contains(of_mode("ssp", "[allreduce]\nalgorithm = 'flat'\n"), "mode \"ssp\" has no all-reduce"));
  CHECK(contains(of_mode("ssp", "[encoding]\npush = 'int8'\n"),
                 "encoding.push = 'int8': must be fp32, bf16 or fp16 with mode \"ssp\": the others keep residuals"));
  CHECK(contains(of_mode("async", "[encoding]\npull = 'int8-delta'\n"),
                 "must be fp32, bf16 or fp16 with mode \"async\": changes need an estimate"));
}

TEST_CASE("a job's name is required and has only portable characters") {
  CHECK(contains(job_refusal(""), "job.toml:1: job.name is not set: every job needs a name"));
  CHECK(contains(job_refusal("\n\n[job]\nmode = 'sync'\n"), "job.toml:3: job.name is not set"));
  CHECK(contains(job_refusal("[job]\nname = ''\n"), "job.toml:2: job.name = '': every job needs a name"));
  for (const char* bad : {"a b", "a/b", "../x y", "caf\u00e9"}) {
    CHECK(contains(job_refusal("[job]\nname = '" + std::string(bad) + "'\n"), "must consist of letters, digits"));
  }
  CHECK(contains(job_refusal("[job]\nname = '" + std::string(129, 'a') + "'\n"), "at most 128 characters, has 129"));
  CHECK(job_refusal("[job]\nname = '" + std::string(128, 'a') + "'\n") == "(accepted)");
}

TEST_CASE("a key that the chosen optimizer or schedule does not have is refused with those that have it") {
  CHECK(
      job_refusal("[job]\nname = 'j'\n[optimizer]\nname = 'adamw'\nmomentum = 0.9\n") ==
      "job.toml:5: optimizer.momentum = 0.9: adamw has no momentum (sgd has): remove the key or change optimizer.name");
  CHECK(contains(key_refusal("optimizer", "beta1 = 0.9"), "sgd has no beta1 (adam, adamw and lion have)"));
  CHECK(contains(key_refusal("optimizer", "eps = 1e-8\nname = 'lion'"),
                 "lion has no eps (adam, adamw and adagrad have)"));
  CHECK(contains(key_refusal("optimizer", "lr_decay = 0.1\nname = 'adam'"), "adam has no lr_decay (adagrad has)"));
  CHECK(contains(key_refusal("schedule", "total_rounds = 5"), "constant has no total_rounds (linear and cosine have)"));
  CHECK(contains(key_refusal("schedule", "step_gamma = 0.5\nname = 'cosine'\ntotal_rounds = 3"),
                 "cosine has no step_gamma"));
}

TEST_CASE("impossible values of the daemons are refused") {
  const std::vector<std::vector<std::string>> server = {
      {"[server]\nindex = 2\nservers = 2", "server.index = 2: must be below servers (2)"},
      {"[server]\n index = 1", "server.index = 1: must be below servers (1)"},
      {"[server]\nservers = 0", "server.servers = 0: must be from 1 to 1024"},
      {"[server]\nservers = 1025", "server.servers = 1025: must be from 1 to 1024"},
      {"[server]\ncoordinator = 'localhost:7070'", "must be \"tcp://HOST:PORT\""},
      {"[server]\ncoordinator = 'tcp://localhost'", "must be \"tcp://HOST:PORT\""},
      {"[server]\ncoordinator = 'tcp://localhost:0'", "a port from 1 to 65535"},
      {"[server]\ncoordinator = 'tcp://localhost:70700'", "a port from 1 to 65535"},
      {"[server]\ncoordinator = 'ipc://'", "must be \"tcp://HOST:PORT\""},
      {"[server]\nbind = 'tcp://0.0.0.0'", "must be \"tcp://ADDRESS:PORT\""},
      {"[server]\nbind = 'udp://0.0.0.0:1'", "must be \"tcp://ADDRESS:PORT\""},
      {"[server]\nbind = 'tcp://0.0.0.0:65535'\nlanes = 2", "the last of 2 lanes would be above 65535"},
      {"[server]\nadvertise = 'tcp://host'", "must be a host name"},
      {"[server]\nlanes = 65", "server.lanes = 65: must be at most 64"},
      {"[server]\nadmin = '8080'", "server.admin = '8080': must be \"HOST:PORT\""},
      {"[server]\nadmin = 'a:65536'", "must be \"HOST:PORT\""},
      {"[server]\nbandwidth = 0.0", "server.bandwidth = 0.0: must be a number from 0.001 to 1e15"},
      {"[store]\nio_mb_per_s = 0", "store.io_mb_per_s = 0: must be at least 1"},
      {"[limits]\nheartbeat_ms = 0", "limits.heartbeat_ms = 0: must be at least 1"},
      {"[limits]\npeer_timeout_ms = 1500", "must be at least twice heartbeat_ms (1000)"},
      {"[limits]\nstop_timeout_s = 0", "limits.stop_timeout_s = 0: must be at least 1"},
      {"[log]\nlevel = 'verbose'", "log.level = 'verbose': must be one of trace, debug, info, warn or error"},
      {"[server]\ncoordinator = ['tcp://a:7070', 'tcp://b:7070']",
       "must have at most 1 addresses: the k-th is server k's, and there are 1 servers"},
      {"[store]\npath = ''\n[server]\nservers = 2\ncoordinator = ['tcp://a:7070', 'tcp://b:7070']",
       "must be set on servers that may have the coordinator, where there are several"},
      {"[security]\ncoordinator_key = 'one.pub'\nkeys = 'k'\n[store]\npath = '/s'\n[server]\nservers = 2\n"
       "coordinator = ['tcp://a:7070', 'tcp://b:7070']",
       "must have the 2 public keys of the servers at the addresses in server.coordinator, in their order"},
  };
  for (const auto& c : server) {
    const std::string text = server_refusal(c[0]);
    CAPTURE(text);
    CHECK(text.starts_with("server.toml:2: "));
    CHECK(contains(text, c[1]));
  }
  const std::vector<std::vector<std::string>> worker = {
      {"[worker]\nsocket = ''", "worker.socket = '': must be a path of 1 to 107 characters"},
      {"[worker]\nsocket = '/" + std::string(107, 'x') + "'", "must be a path of 1 to 107 characters"},
      {"[worker]\nlanes = 65", "worker.lanes = 65: must be at most 64"},
      {"[worker]\ncoordinator = ''", "worker.coordinator = '': must be"},
      {"[worker]\ncoordinator = []", "worker.coordinator = []: must be"},
      {"[worker]\ncoordinator = ['tcp://a:7070', 'b']", "or a list of such addresses"},
      {"[worker]\ncoordinator = ['tcp://a:7070', 'tcp://a:7070']",
       "has an address twice: the k-th is server k's alone"},
      {"[worker]\ncoordinator = ['tcp://a:7070', 'tcp://b:7070']\nserve_coordinator = true",
       "must have at most 1 addresses: it is this worker's own"},
      {"[worker]\nnode_reduction = 'gpu'", "worker.node_reduction = 'gpu': must be one of auto, host or device"},
      {"[device]\nnccl = 'never'", "device.nccl = 'never': must be one of auto or always"},
      {"[device]\ncollective_timeout_ms = 99", "device.collective_timeout_ms = 99: must be at least 100"},
      {"[limits]\nwindow_bytes = 1000", "limits.window_bytes = 1000: must be at least 65536"},
      {"[limits]\nheartbeat_ms = 0", "limits.heartbeat_ms = 0: must be at least 1"},
  };
  for (const auto& c : worker) {
    const std::string text = worker_refusal(c[0]);
    CAPTURE(text);
    CHECK(text.starts_with("worker.toml:2: "));
    CHECK(contains(text, c[1]));
  }
  CHECK(
      server_refusal("[server]\nbind = 'tcp://0.0.0.0:65534'\nlanes = 2\nadmin = ''\ncoordinator = 'ipc:///tmp/c'\n") ==
      "(accepted)");
}

TEST_CASE("of several mistakes the one on the lowest line is reported, whatever its kind") {
  CHECK(job_refusal("[job]\nname = 'j'\n[train]\nepochs = 0\nzebra = 1\n").starts_with("job.toml:4: "));
  CHECK(job_refusal("[job]\nname = 'j'\nzebra = 1\n[train]\nepochs = 0\n").starts_with("job.toml:3: "));
  CHECK(job_refusal("[train]\nepochs = 'x'\n[job]\nname = 7\n").starts_with("job.toml:2: "));
  // The mistake is the name; that the default optimizer lacks beta1 is only its consequence, though on an earlier line.
  CHECK(contains(job_refusal("job.name = 'j'\n[optimizer]\nbeta1 = 0.9\nnaem = 'adam'\n"), "did you mean 'name'?"));
  CHECK(contains(job_refusal("job.name = 'j'\n[optimizer]\nbeta1 = 0.9\nname = 'adm'\n"), "optimizer.name = 'adm'"));
  CHECK(contains(job_refusal("job.name = 'j'\n[optimizer]\nbeta1 = 0.9\nname = 5\n"), "optimizer.name = 5"));
  CHECK(contains(job_refusal("[job]\nnmae = 'j'\n"), "did you mean 'name'?"));
}

TEST_CASE("text that is no TOML is refused with line and column") {
  CHECK(contains(job_refusal("[job]\nname = \n"), "job.toml:2: not valid TOML at column"));
  CHECK(contains(job_refusal("[job]\nname = 'a'\nname = 'b'\n"), "job.toml:3: not valid TOML"));
  CHECK(contains(job_refusal(std::string("[job]\nname = '\xff\xfe'\n")), "not valid TOML"));
  CHECK(contains(job_refusal("x = " + std::string(100000, '[')), "not valid TOML"));
}

TEST_CASE("letters that are no ASCII are refused where a key or a value would be, and welcome in texts") {
  for (const char* const letter : {"\u00e9", "\u0456", "\u3042", "\ufd00"}) {
    CHECK(contains(job_refusal("[job]\n" + std::string(letter) + " = 1\n"), "job.toml:2: not valid TOML"));
    CHECK(contains(job_refusal("[job]\nname = " + std::string(letter) + "\n"), "job.toml:2: not valid TOML"));
    CHECK(parse_job_config("# " + std::string(letter) + "\n[job]\nname = 'j'\n", "job.toml"));
  }
}

TEST_CASE("overrides win over the file and over earlier ones, with TOML's types or as bare words") {
  const std::string text = "[job]\nname = 'j'\n[optimizer]\nname = 'adamw'\nlr = 0.5\n";
  const std::vector<std::string> overrides = {
      "optimizer.lr=0.1",   "optimizer.lr = 0.25",      "train.hidden=[8, 4]",     "job.name=other-1.2",
      "encoding.push=bf16", "schedule.name=\"cosine\"", "schedule.total_rounds=9", "train.data_dir=/data/fashion"};
  const auto c = required(parse_job_config(text, "job.toml", overrides));
  CHECK(c.optimizer.lr == 0.25);
  CHECK(c.train.hidden == std::vector<std::uint32_t>{8, 4});
  CHECK(c.name == "other-1.2");
  CHECK(c.push == EncodingId::kBf16);
  CHECK(c.schedule.kind == ScheduleKind::kCosine);
  CHECK(c.schedule.total_rounds == 9);
  CHECK(c.train.data_dir == "/data/fashion");
  CHECK(c.optimizer.weight_decay == 0.01);
}

TEST_CASE("a wrong override is refused by its own text") {
  CHECK(override_refusal({"optimizer.lr=-1"}) ==
        "override 'optimizer.lr=-1': optimizer.lr = -1: must be a finite number above 0");
  CHECK(override_refusal({"optimizer.lr=abc"}) ==
        "override 'optimizer.lr=abc': optimizer.lr = 'abc': must be a number, is a string");
  CHECK(contains(override_refusal({"optimizer.rl=1"}),
                 "override 'optimizer.rl=1': unknown key 'rl' in [optimizer]; did you mean 'lr'?"));
  CHECK(contains(override_refusal({"optimzer.lr=1"}),
                 "override 'optimzer.lr=1': unknown section [optimzer]; did you mean [optimizer]?"));
  CHECK(contains(override_refusal({"optimizer.momentum=0.9"}),
                 "override 'optimizer.momentum=0.9': optimizer.momentum = 0.9: adamw has no"));
  CHECK(contains(override_refusal({"schedule.name=cosine"}),
                 "override 'schedule.name=cosine': schedule.total_rounds is not set"));
  for (const char* bad :
       {"", "lr=1", "optimizer.lr", "optimizer.lr=", "=1", ".lr=1", "optimizer.=1", "a b.c=1", "optimizer.lr=1\nx=2"}) {
    CHECK(contains(override_refusal({bad}), "must be section.key=value"));
  }
  CHECK(contains(override_refusal({"optimizer.lr=[1,"}), "is not valid TOML"));
  CHECK(contains(override_refusal({"optimizer.lr=1"}, "job.name = 'j'\noptimizer = 3\n"),
                 "optimizer is not a section in job.toml"));
}

TEST_CASE("a missing file is named, and so is one that cannot be a configuration") {
  const auto missing = failure_of(load_job_config("/nonexistent/job.toml"));
  CHECK(missing.code == ErrorCode::kNotFound);
  CHECK(contains(missing.message, "/nonexistent/job.toml"));

  const auto folder = failure_of(load_server_config("/tmp"));
  CHECK(folder.code == ErrorCode::kIo);
  CHECK(contains(folder.message, "/tmp"));

  const TempDir dir;
  std::ofstream(dir / "huge.toml") << std::string(kMaxConfigBytes + 1, '#');
  CHECK(contains(refusal(load_worker_config(dir / "huge.toml")), "more than 1048576 bytes"));
}

TEST_CASE("lanes follow from the cores: a quarter, from one to eight") {
  CHECK(default_lanes(0) == 1);
  CHECK(default_lanes(2) == 1);
  CHECK(default_lanes(8) == 2);
  CHECK(default_lanes(16) == 4);
  CHECK(default_lanes(256) == 8);
}

}  // namespace tributary::config_test
