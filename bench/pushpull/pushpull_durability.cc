// The cost of survival: clusters of the same kind with and without it.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/pushpull/pushpull_setup.h"
#include "bench/sample_model.h"
#include "bench/told_progress.h"
#include "common/math/median.h"
#include "common/wire/redo_plan.h"

namespace tributary::bench {

using Json = nlohmann::ordered_json;

namespace {

// Rounds that nodes keep. 0: they have no room for enough.
Result<std::uint32_t> kept_rounds(const PushPullOptions& options, const PushPullBenchmark& benchmark) {
  const JobConfig job = pushpull_job(options);
  const auto layout =
      Layout::make(sample_tensors(options.model_bytes), benchmark.chunk_bytes() / sizeof(float),
                   std::vector<ShardSlots>(options.servers, ShardSlots{.lanes = benchmark.lanes(), .weight = 1.0}));
  if (!layout) return tl::unexpected(layout.error());
  return redo_rounds(job, push_bytes(*layout, job.push));
}

// The same, or kInvalidArgument with what would do: where nothing is kept there is nothing to measure.
Result<std::uint32_t> some_kept_rounds(const PushPullOptions& options, const PushPullBenchmark& benchmark) {
  const auto kept = kept_rounds(options, benchmark);
  if (!kept || *kept > 0) return kept;
  const auto enough = [&](const PushPullOptions& one) { return kept_rounds(one, benchmark).value_or(1) > 0; };
  PushPullOptions larger = options, smaller = options;
  std::uint32_t& room = larger.recovery.redo_mb;
  while (!enough(larger) && room < (1u << 24)) room = std::max(2 * room, 64u);
  while (!enough(smaller) && smaller.model_bytes > (1u << 20)) smaller.model_bytes /= 2;
  return fail(ErrorCode::kInvalidArgument, "nothing is kept of a model of " + std::to_string(options.model_bytes) +
                                               " bytes, as fewer than " + std::to_string(kMinRedoRounds) +
                                               " rounds fit --redo-mb " + std::to_string(options.recovery.redo_mb) +
                                               "; give --redo-mb " + std::to_string(room) + ", or --model-bytes " +
                                               std::to_string(smaller.model_bytes));
}

struct Survivor {
  const char* name;
  std::uint32_t copies;  // of each part of a snapshot; 0: no snapshots
  std::unique_ptr<PushPullSetup> setup = {};
  std::uint32_t kept_rounds = 0;
  PushPullBenchmark::Kept first = {}, written = {};  // before and after the slices
};

// Returns what a snapshot cost all servers beyond the rounds, while the slices ran.
Json cost_of_snapshots(const Survivor& off, const Survivor& on) {
  const auto between = [](const Survivor& variant, auto member) {
    return static_cast<double>(variant.written.*member) - static_cast<double>(variant.first.*member);
  };
  using Kept = PushPullBenchmark::Kept;
  const double cpu_a_round = between(off, &Kept::server_cpu_seconds) / std::max(between(off, &Kept::rounds), 1.0);
  const double extra = between(on, &Kept::server_cpu_seconds) - cpu_a_round * between(on, &Kept::rounds);
  const double size = std::max(static_cast<double>(on.written.snapshot_bytes), 1.0);
  const double snapshots = between(on, &Kept::written_bytes) / size;
  return {{"snapshots", snapshots},
          {"copied_bytes", between(on, &Kept::copied_bytes)},
          {"cpu_seconds_a_snapshot", extra / std::max(snapshots, 1.0)}};
}

}  // namespace

Result<Json> run_durability(const PushPullOptions& options) {
  std::vector<Survivor> variants;
  variants.push_back({.name = "off", .copies = 0});
  variants.push_back({.name = "redo", .copies = 1});
  if (options.servers > 1) variants.push_back({.name = "copies", .copies = 2});
  for (Survivor& variant : variants) {
    PushPullOptions one = options;
    one.store = true;
    one.ceiling = false;
    one.ranks_write = true;
    if (variant.copies == 0) {
      one.recovery.redo_mb = 0;
      one.snapshot = kNoSnapshots;
    } else {
      one.snapshot.copies = variant.copies;
    }
    auto setup = PushPullSetup::start(one);
    if (!setup) return tl::unexpected(setup.error());
    variant.setup = std::move(*setup);
    if (auto ok = variant.setup->benchmark().wait_paused(); !ok) return tl::unexpected(ok.error());
    if (one.recovery.redo_mb == 0) continue;
    const auto kept = some_kept_rounds(one, variant.setup->benchmark());
    if (!kept) return tl::unexpected(kept.error());
    variant.kept_rounds = *kept;
  }
  // A ring allocates memory in its first turn, and snapshots with the first one: once in the life of a job, so this is
  // no cost of a round. (And the pace, which slices make jump, decides which round is captured.)
  for (Survivor& variant : variants) {
    PushPullBenchmark& benchmark = variant.setup->benchmark();
    const std::uint64_t rounds = variants[1].kept_rounds + PushPullBenchmark::kWarmRounds;
    if (auto ok = benchmark.warm_up(rounds); !ok) return tl::unexpected(ok.error());
    const auto written = benchmark.written();
    if (!written) return tl::unexpected(written.error());
    variant.first = *written;
  }
  ToldProgress progress(options.tell, "slices");
  for (std::uint32_t i = 0; i < options.slices; ++i) {
    progress.reached(i, options.slices);
    for (std::size_t turn = 0; turn < variants.size(); ++turn) {
      // The first variant of one slice is the last in the next: none always follows the same one.
      Survivor& variant = variants[(i + turn) % variants.size()];
      if (auto ok = variant.setup->benchmark().slice(); !ok) return tl::unexpected(ok.error());
      const auto written = variant.setup->benchmark().written();
      if (!written) return tl::unexpected(written.error());
      variant.written = *written;
    }
  }
  // The cost is of snapshots as much as of what nodes keep.
  if (variants[1].written.newest_snapshot == variants[1].first.newest_snapshot) {
    return fail(ErrorCode::kUnavailable,
                "no slice had a snapshot, so this says nothing of what they cost; give more --seconds");
  }
  Json result;
  const std::vector<double> off = variants[0].setup->benchmark().slices();
  for (Survivor& variant : variants) {
    std::vector<double> ratios;
    const std::vector<double> slices = variant.setup->benchmark().slices();
    for (std::size_t i = 0; i < slices.size(); ++i) ratios.push_back(slices[i] / off[i]);
    auto measured = variant.setup->benchmark().finish();
    if (!measured) return measured;
    Json& entry = result[variant.name];
    for (const char* key : {"gb_per_s_each_way", "rounds_per_s", "cpu_seconds_per_gb", "slices_gb_per_s"})
      entry[key] = measured->at(key);
    entry["cpu_seconds_per_gb_of_servers"] = measured->at("cpu_seconds_per_gb_of").at("servers");
    entry["ratio_to_off"] = median(ratios);
    entry["kept_rounds"] = variant.kept_rounds;
    entry["snapshot_bytes"] = variant.written.snapshot_bytes;
    entry["newest_snapshot"] = variant.written.newest_snapshot;
    if (variant.copies > 0) entry.update(cost_of_snapshots(variants[0], variant));
    for (const char* key :
         {"servers", "nodes", "ranks_per_node", "model_bytes", "optimizer", "transport", "chunk_bytes"})
      result[key] = measured->at(key);
  }
  for (Survivor& variant : variants) {
    if (auto ok = variant.setup->stop(); !ok) return tl::unexpected(ok.error());
  }
  return result;
}

}  // namespace tributary::bench
