// `tributary bench compare`: the variants of a lab file in turn on the same lab, repeatedly (A B A B), next to the
// cost model's prediction.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/lab/compare_words.h"
#include "bench/lab/lab_prediction.h"
#include "bench/lab/repeated_runs.h"
#include "bench/measurements.h"
#include "common/base/printed.h"
#include "common/base/result.h"
#include "common/config/config_toml.h"
#include "common/math/encoding.h"
#include "common/math/median.h"
#include "tools/lab/lab.h"
#include "tools/lab/lab_run.h"

namespace tributary::bench {
namespace {

struct CompareOptions {
  lab::ExchangeOptions exchange;                 // and the run's folder, overrides for all variants, interruption
  std::uint32_t repetitions = 3;                 // of every variant
  bool with_job = true;                          // also train the lab file's job, if it has one
  std::function<void(const std::string&)> tell;  // one line at a time
};

// Variants without servers in a lab that has none, and those that the file does not give:
//   servers as the file has them; flat ring; Gloo's own ring
std::vector<lab::LabVariant> variants_of(const lab::LabConfig& config);

// The run whose time is nearest to the median: what cannot be averaged is shown of it.
const Json& typical(const std::vector<Json>& runs, const char* time) {
  const double middle = median(column(runs, [&](const Json& r) { return number(r, time); }));
  return *std::ranges::min_element(runs, {}, [&](const Json& r) { return std::abs(number(r, time) - middle); });
}

Json to_json(const Prediction& p, double seconds) {
  return {{"seconds", seconds}, {"bottleneck", p.bottleneck}, {"network_s", p.network_s}, {"latency_s", p.latency_s},
          {"tail_s", p.tail_s}, {"inside_s", p.inside_s},     {"exposed_s", p.exposed_s}};
}

// Adds predicted, predicted_why_not and error to a part of the result.
void add_prediction(Json& part, const Result<Scenario>& scenario, bool step, double measured) {
  const auto prediction = scenario.and_then([](const Scenario& s) { return predict(s); });
  part["predicted"] = nullptr;
  part["predicted_why_not"] = prediction ? "" : prediction.error().message;
  part["error"] = nullptr;
  if (!prediction) return;
  // The measured time is a round's: with local steps, of all of them.
  const double seconds = step ? prediction->step_s * scenario->local_steps : prediction->exchange_s;
  part["predicted"] = to_json(*prediction, seconds);
  if (seconds > 0.0) part["error"] = measured / seconds - 1.0;
}

// Bytes of all links per sample, each byte counted once, where it was sent.
double wire_bytes_per_sample(const Json& job) {
  double bytes = 0.0;
  for (const auto& host : job.at("hosts")) bytes += number(host, "wire_bytes_sent");
  return bytes / std::max(number(job, "samples"), 1.0);
}

class Comparison {
 public:
  Comparison(const lab::Lab& lab, const CompareOptions& options)
      : lab_(lab),
        options_(options),
        variants_(variants_of(lab.config())),
        exchanges_(variants_.size()),
        jobs_(variants_.size()) {}

  Result<Json> run() {
    for (std::uint32_t repetition = 0; repetition < options_.repetitions; ++repetition) {
      for (std::size_t v = 0; v < variants_.size(); ++v) {
        if (auto ok = run_variant(repetition, v); !ok) {
          return fail(ok.error().code, "variant \"" + variants_[v].name + "\": " + ok.error().message);
        }
      }
    }
    return summary();
  }

 private:
  Status run_variant(std::uint32_t repetition, std::size_t v) {
    const lab::LabVariant& variant = variants_[v];
    lab::ExchangeOptions e = options_.exchange;
    e.run.job_file = variant.file;
    e.run.overrides.insert(e.run.overrides.end(), variant.overrides.begin(), variant.overrides.end());
    const std::string where =
        std::to_string(repetition + 1) + "/" + std::to_string(options_.repetitions) + " " + variant.name + ": ";
    lab::ExchangeOptions alone = e;
    if (auto ok = set_exchange(variant, alone.run.overrides); !ok) return ok;
    auto exchange = variant.baseline == "gloo" ? run_gloo_ring(lab_, alone) : run_exchange(lab_, alone);
    if (!exchange) return tl::unexpected(exchange.error());
    options_.tell(where + printed("exchange %.4f s a round, %.3f x model / goodput", number(*exchange, "round_seconds"),
                                  number(*exchange, "ratio")));
    exchanges_[v].push_back(std::move(*exchange));
    if (!trains(variant)) return {};
    auto job = run_job(lab_, e.run);
    if (!job) return tl::unexpected(job.error());
    if (!job->at("step_seconds").is_number()) {
      return fail(ErrorCode::kInvalidArgument,
                  "the job has too few rounds to compare: give it more than " + job->at("rounds").dump());
    }
    options_.tell(where + printed("training %.1f ms a round, %.1f s in all", 1e3 * number(*job, "step_seconds"),
                                  number(*job, "seconds")));
    jobs_[v].push_back(std::move(*job));
    return {};
  }

  // A variant's own job file says what its exchange is; of it only the mode and the encodings matter there. (An
  // exchange computes nothing, so there are no local steps in it.)
  Status set_exchange(const lab::LabVariant& variant, std::vector<std::string>& overrides) const {
    if (variant.file.empty()) return {};
    const auto job = job_of(variant);
    if (!job) return tl::unexpected(job.error());
    const auto text = [](std::string_view value) { return "\"" + std::string(value) + "\""; };
    overrides = {"encoding.push=" + text(make_encoding(job->push)->name()),
                 "encoding.pull=" + text(make_encoding(job->pull)->name())};
    if (!on_servers(*job)) {
      overrides.insert(overrides.end(),
                       {"job.mode=\"allreduce\"", "allreduce.algorithm=" + text(word(job->allreduce.algorithm))});
    }
    return {};
  }

  bool trains(const lab::LabVariant& variant) const {
    return options_.with_job && !lab_.config().job.file.empty() && variant.baseline.empty();
  }

  // The job as a variant runs it: for its mode, encodings and local steps.
  Result<JobConfig> job_of(const lab::LabVariant& variant) const {
    std::vector<std::string> overrides = options_.exchange.run.overrides;
    overrides.insert(overrides.end(), variant.overrides.begin(), variant.overrides.end());
    if (!variant.file.empty()) return load_job_config(variant.file, overrides);
    return parse_job_config("[job]\nname = \"compare\"\n", "the variant", overrides);
  }

  Result<Scenario> scenario_of(const lab::LabVariant& variant, double model_bytes) const {
    const double goodput = payload_share(lab_.config(), lab_.links());
    if (variant.baseline == "gloo") return gloo_scenario(lab_.config(), model_bytes, goodput);
    const auto job = job_of(variant);
    if (!job) return tl::unexpected(job.error());
    return lab_scenario(lab_.config(), *job, model_bytes, goodput);
  }

  Json exchange_part(std::size_t v) const {
    const std::vector<Json>& runs = exchanges_[v];
    const Json& one = typical(runs, "round_seconds");
    const auto seconds = column(runs, [](const Json& r) { return number(r, "round_seconds"); });
    Json part = {{"seconds", spread(seconds)},
                 {"ratio", median(column(runs, [](const Json& r) { return number(r, "ratio"); }))}};
    part.update(usage(runs));
    part["binds"] = what_binds_exchange(limits_of(one, number(one, "round_seconds")));
    add_prediction(part, scenario_of(variants_[v], number(one, "model_bytes")), false, median(seconds));
    return part;
  }

  Json job_part(std::size_t v) const {
    const std::vector<Json>& runs = jobs_[v];
    if (runs.empty()) return nullptr;
    const Json& one = typical(runs, "step_seconds");
    const auto seconds = column(runs, [](const Json& r) { return number(r, "step_seconds"); });
    const auto split = [&](const char* key) {
      return median(column(runs, [&](const Json& r) { return number(r.at("step_split"), key); }));
    };
    const double compute = split("compute_ms"), reduce = split("reduce_ms"), wait = split("wait_ms");
    Json part = {{"step_seconds", spread(seconds)},
                 {"step_split", {{"compute_ms", compute}, {"reduce_ms", reduce}, {"wait_ms", wait}}}};
    for (const char* key : {"seconds", "test_accuracy", "train_loss", "digest", "rounds", "samples", "model_bytes"})
      part[key] = one.at(key);
    part.update(usage(runs));
    part["wire_bytes_per_sample"] = median(column(runs, wire_bytes_per_sample));
    part["binds"] = what_binds_step(compute, reduce, wait, limits_of(one, number(one, "step_seconds")));
    auto scenario = scenario_of(variants_[v], number(one, "model_bytes"));
    if (scenario) {
      // For one local step: a round computes all of them.
      scenario->compute_s = 1e-3 * compute / scenario->local_steps;
      scenario->overlap = lab_.config().compare.overlap;
    }
    add_prediction(part, scenario, true, median(seconds));
    return part;
  }

  Json summary() const {
    Json variants = Json::array(), speedups = Json::array();
    for (std::size_t v = 0; v < variants_.size(); ++v) {
      variants.push_back({{"name", variants_[v].name},
                          {"mode", exchanges_[v].front().at("mode")},
                          {"overrides", variants_[v].overrides},
                          {"exchange", exchange_part(v)},
                          {"job", job_part(v)}});
    }
    const Json& last = variants.back();
    for (std::size_t v = 0; v + 1 < variants_.size(); ++v) {
      const auto seconds = [](const Json& variant) { return number(variant.at("exchange").at("seconds"), "median"); };
      speedups.push_back({{"of", variants_[v].name},
                          {"over", variants_.back().name},
                          {"times", seconds(last) / seconds(variants[v])}});
    }
    return {{"lab", described(lab_)},
            {"model_bytes", exchanges_.front().front().at("model_bytes")},
            {"repetitions", options_.repetitions},
            {"variants", std::move(variants)},
            {"speedups", std::move(speedups)}};
  }

  const lab::Lab& lab_;
  const CompareOptions& options_;
  const std::vector<lab::LabVariant> variants_;
  std::vector<std::vector<Json>> exchanges_, jobs_;  // by variant and repetition
};

std::vector<lab::LabVariant> variants_of(const lab::LabConfig& config) {
  if (!config.variants.empty()) return config.variants;
  std::vector<lab::LabVariant> variants;
  if (config.servers() > 0) variants.push_back({.name = "servers", .overrides = {}, .baseline = {}});
  variants.push_back(
      {.name = "flat ring", .overrides = {"job.mode=allreduce", "allreduce.algorithm=flat"}, .baseline = {}});
  variants.push_back({.name = "Gloo's ring", .overrides = {}, .baseline = "gloo"});
  return variants;
}

// {lab {name, rate_mbit, hosts[], links[], goodput_bytes_per_s, goodput_from}, model_bytes, repetitions, variants
// [{name,
//   mode, overrides[], exchange {seconds {median, min, max, all[]}, ratio, wire_bytes [{host, sent, received}] and
//   processes [{name, seconds}] (of a round), cpu_seconds (of a round), machine_busy, drops, retransmits, binds (in
//   words), predicted {seconds, bottleneck, network_s, latency_s, tail_s, inside_s} or null, predicted_why_not, error
//   (measured over predicted, less 1)}, job (or null) {step_seconds {...}, step_split, seconds, test_accuracy,
//   train_loss, digest, rounds, samples, model_bytes, wire_bytes, wire_bytes_per_sample (all links together),
//   cpu_seconds, machine_busy, drops, retransmits, binds, predicted, error}}],
//  speedups [{of, over, times}] (exchange medians; over the last variant)}
Result<Json> run_compare(const lab::Lab& lab, const CompareOptions& options) {
  if (options.repetitions == 0) return fail(ErrorCode::kInvalidArgument, "repetitions = 0: give at least one");
  return Comparison(lab, options).run();
}

struct CompareArguments {
  LabArguments labs;
  CompareOptions options;
  bool no_job = false;
};

Result<Json> compare_in(const lab::Lab& lab, const CompareArguments& a, MeasurementRun& run) {
  const lab::LabConfig& config = lab.config();
  CompareOptions o = a.options;
  o.exchange.run.base_dir = a.labs.folder_of(config);
  o.exchange.run.interrupted = run.interrupted;
  if (o.exchange.model_bytes == 0) o.exchange.model_bytes = config.exchange.model_bytes;
  if (o.exchange.rounds == 0) o.exchange.rounds = config.exchange.rounds;
  o.exchange.warmup = config.exchange.warmup;
  o.exchange.optimizer = config.exchange.optimizer;
  o.repetitions = a.labs.repetitions_in(config);
  o.with_job = !a.no_job;
  o.tell = [&](const std::string& line) { run.tell(config.name + ": " + line); };
  return run_compare(lab, o);
}

MeasurementResult measure_compare(CompareArguments& a, MeasurementRun& run) {
  return measure_labs(a.labs, run, [&](const lab::Lab& lab) { return compare_in(lab, a, run); });
}

}  // namespace

Measurement compare() {
  const auto add = [](CliCommand command, CompareArguments& a) {
    a.options.exchange.model_bytes = 0;
    a.options.exchange.rounds = 0;
    add_lab_arguments(command, a.labs);
    add_overrides(command, a.options.exchange.run.overrides);
    add_bytes(command, "--model-bytes", a.options.exchange.model_bytes, "fp32 parameters of the exchanges, as 16MiB");
    command.add_option("--rounds", a.options.exchange.rounds, "measured, of each exchange");
    command.add_flag("--no-job", a.no_job, "only the exchanges");
  };
  return {
      .name = "compare",
      .summary = "modes and encodings in turn on the same lab",
      .words =
          R"(Runs the [[variants]] of a lab file in turn on the same lab, [compare] repetitions times: each variant's exchange alone, and the file's job if it
has one. Without variants: the servers of the file, the flat ring, and Gloo's own ring. Several files are several labs, one after the other. Needs
what `tributary lab` needs.

All times stand beside the cost model's predictions, and words say which resource binds. With --json: where a step's time goes, and the
bytes on each host's wire, too.)",
      .columns =
          "name,exchange.seconds.median,exchange.ratio,exchange.predicted.seconds,exchange.error,exchange.binds,"
          "job.step_seconds.median,job.seconds,job.wire_bytes_per_sample,job.test_accuracy,of,times,over",
      .stops = true,
      .add = measures<CompareArguments>(add, measure_compare)};
}

}  // namespace tributary::bench
