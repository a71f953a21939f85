#include "tools/cli/run/run_summary.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "tools/cluster/trainer_result.h"

namespace tributary::cli {
namespace {

constexpr std::chrono::milliseconds kStatusTimeout{2'000};

double in_megabytes(const nlohmann::ordered_json& bytes) {
  return bytes.get<double>() * 1e-6;
}

// Over all nodes, whose ranks report the same.
nlohmann::ordered_json staleness_of(const std::vector<nlohmann::ordered_json>& ranks, std::uint32_t per_node) {
  double pulls = 0.0, sum = 0.0, most = 0.0;
  for (std::size_t rank = 0; rank < ranks.size(); rank += per_node) {
    const auto& one = ranks[rank].at("staleness");
    pulls += one.at("pulls").get<double>();
    sum += one.at("pulls").get<double>() * one.at("mean").get<double>();
    most = std::max(most, one.at("max").get<double>());
  }
  return {{"pulls", static_cast<std::uint64_t>(pulls)},
          {"mean", pulls > 0.0 ? sum / pulls : 0.0},
          {"max", static_cast<std::uint64_t>(most)}};
}

// With a deadline a rank knows only of its own samples.
double over_ranks(const std::vector<nlohmann::ordered_json>& ranks, const char* key) {
  if (!ranks.front().contains("samples_left")) return ranks.front().at(key).get<double>();
  double sum = 0.0;
  for (const auto& rank : ranks) sum += rank.at(key).get<double>();
  return sum;
}

}  // namespace

nlohmann::ordered_json server_usage(LocalCluster& cluster) {
  auto all = nlohmann::ordered_json::array();
  for (Daemon& server : cluster.servers()) {
    const ProcessUsage usage = server.process.usage();
    nlohmann::ordered_json owned;  // null: it does not answer any more
    if (const auto text = http_get(server.admin, "/status", kStatusTimeout)) {
      const auto status = ordered_json_in(*text);
      if (status.is_object() && status.contains("memory")) owned = status["memory"]["max_owned_bytes"];
    }
    all.push_back({{"name", server.name},
                   {"lanes", server.lanes.size()},
                   {"cpu_seconds", usage.cpu_seconds},
                   {"max_owned_bytes", std::move(owned)}});
  }
  return all;
}

Result<nlohmann::ordered_json> summarise(LocalCluster& cluster, nlohmann::ordered_json servers) {
  const auto found = parsed_results(cluster);
  if (!found) return tl::unexpected(found.error());
  const std::vector<nlohmann::ordered_json>& ranks = *found;
  try {
    const nlohmann::ordered_json& first = ranks.at(0);
    double loss_sum = 0.0, correct = 0.0, samples = 0.0, compute = 0.0, reduce = 0.0, wait = 0.0;
    std::set<std::string> kinds;
    for (const auto& rank : ranks) {
      kinds.insert(rank.at("computes_with").get<std::string>());
      // Where nodes have clocks of their own and were stopped, each stands where it stood, and has no digest to show.
      const bool apart =
          (rank.contains("staleness") || rank.contains("samples_left")) && rank.at("stopped").get<bool>();
      if (rank.at("digest") != first.at("digest") || (rank.at("rounds") != first.at("rounds") && !apart)) {
        return fail(ErrorCode::kInternal, "ranks ended with different parameters: rank 0 with digest " +
                                              first.at("digest").dump() + " after round " + first.at("rounds").dump() +
                                              ", rank " + rank.at("rank").dump() + " with digest " +
                                              rank.at("digest").dump() + " after round " + rank.at("rounds").dump());
      }
      loss_sum += train_loss_sum(rank);
      correct += rank.at("train_correct").get<double>();
      samples += rank.at("train_samples").get<double>();
      compute += rank.at("step_split").at("compute_ms").get<double>();
      reduce += rank.at("step_split").at("reduce_ms").get<double>();
      wait += rank.at("step_split").at("wait_ms").get<double>();
    }
    const auto n = static_cast<double>(ranks.size());
    const auto rounds = first.at("rounds").get<std::uint64_t>();
    const bool stopped = first.at("stopped").get<bool>();
    std::string not_saved;
    for (const auto& rank : ranks) {
      if (not_saved.empty()) not_saved = rank.value("not_saved", "");
    }
    auto nodes = nlohmann::ordered_json::array();
    double bytes = 0.0;
    const std::uint32_t per_node = cluster.options().ranks_per_node;
    for (std::uint32_t node = 0; node < cluster.options().nodes; ++node) {
      const auto& rank = ranks.at(node * per_node);
      bytes += rank.at("bytes_pushed").get<double>() + rank.at("bytes_pulled").get<double>();
      nodes.push_back({{"bytes_pushed", rank.at("bytes_pushed")}, {"bytes_pulled", rank.at("bytes_pulled")}});
    }
    const double samples_here = over_ranks(ranks, "samples");
    nlohmann::ordered_json summary{
        {"job", first.at("job")},
        {"test_accuracy", first.at("test_accuracy")},
        {"train_loss", samples > 0 ? nlohmann::ordered_json(loss_sum / samples) : nlohmann::ordered_json(nullptr)},
        {"train_accuracy", samples > 0 ? nlohmann::ordered_json(correct / samples) : nlohmann::ordered_json(nullptr)},
        {"digest", first.at("digest")},
        {"rounds", rounds},
        {"last_round", first.at("last_round")},
        {"completed", !stopped && rounds >= first.at("last_round").get<std::uint64_t>()},
        {"stopped", stopped},
        {"stop_reason", first.value("stop_reason", "")},
        {"not_saved", not_saved},
        {"resumed_from", first.at("resumed_from")},
        {"restarts", first.at("restarts")},
        {"seconds", first.at("seconds")},
        {"samples_per_s", over_ranks(ranks, "samples_per_s")},
        {"bytes_per_sample",
         samples_here > 0 ? nlohmann::ordered_json(bytes / samples_here) : nlohmann::ordered_json(nullptr)},
        {"step_split", {{"compute_ms", compute / n}, {"reduce_ms", reduce / n}, {"wait_ms", wait / n}}},
        {"nodes", std::move(nodes)},
        {"servers", std::move(servers)},
        {"computed_with", kinds},
    };
    if (first.contains("samples_left")) {
      summary["samples_left"] = static_cast<std::uint64_t>(over_ranks(ranks, "samples_left"));
    }
    if (first.contains("staleness")) summary["staleness"] = staleness_of(ranks, per_node);
    if (first.contains("gate")) summary["gate"] = first.at("gate");  // equal on all ranks
    return summary;
  } catch (const nlohmann::json::exception& e) {
    return fail(ErrorCode::kInternal, std::string("a rank's result is not as expected: ") + e.what());
  }
}

std::string nodes_text(const nlohmann::ordered_json& s) {
  std::string text;
  int number = 0;
  for (const auto& node : s.at("nodes")) {
    text += printed("  node %-7d %.1f MB pushed, %.1f MB pulled\n", number++, in_megabytes(node.at("bytes_pushed")),
                    in_megabytes(node.at("bytes_pulled")));
  }
  return text;
}

std::string servers_text(const nlohmann::ordered_json& s) {
  std::string text;
  for (const auto& server : s.at("servers")) {
    text += printed("  %-12s %.1f CPU-seconds", server.at("name").get<std::string>().c_str(),
                    server.at("cpu_seconds").get<double>());
    const auto owned = server.value("max_owned_bytes", nlohmann::ordered_json());
    text += owned.is_number() ? printed(", at most %.0f MB of its own\n", in_megabytes(owned)) : "\n";
  }
  return text;
}

std::string summary_text(const nlohmann::ordered_json& s) {
  std::string text;
  const auto resumed = s.at("resumed_from").get<std::uint64_t>();
  text += printed("  rounds       %llu of %llu", s.at("rounds").get<unsigned long long>(),
                  s.at("last_round").get<unsigned long long>());
  text += resumed > 0 ? ", resumed after round " + std::to_string(resumed) + "\n" : "\n";
  if (s.at("test_accuracy").is_number())
    text += printed("  test         accuracy %.4f\n", s.at("test_accuracy").get<double>());
  if (s.at("train_loss").is_number()) {
    text += printed("  training     loss %.4f, accuracy %.4f (last epoch, all ranks)\n",
                    s.at("train_loss").get<double>(), s.at("train_accuracy").get<double>());
  }
  text += printed("  throughput   %.0f samples/s over %.1f s\n", s.at("samples_per_s").get<double>(),
                  s.at("seconds").get<double>());
  if (s.contains("samples_left")) {
    text += "  late         " + s.at("samples_left").dump() + " samples left for want of time\n";
  }
  if (s.contains("gate")) {
    text += "  gate         " + s.at("gate").at("clipped").dump() + " rounds clipped, " +
            s.at("gate").at("skipped").dump() + " skipped; loss scale " + s.at("gate").at("loss_scale").dump() + "\n";
  }
  if (s.contains("staleness")) {
    const auto& staleness = s.at("staleness");
    text += printed("  staleness    mean %.2f, at most %llu clocks behind, over %llu chunks pulled\n",
                    staleness.at("mean").get<double>(), staleness.at("max").get<unsigned long long>(),
                    staleness.at("pulls").get<unsigned long long>());
  }
  const auto& split = s.at("step_split");
  const double compute = split.at("compute_ms").get<double>(), reduce = split.at("reduce_ms").get<double>(),
               wait = split.at("wait_ms").get<double>(), step = std::max(compute + reduce + wait, 1e-9);
  text += printed(
      "  round        %.2f ms: compute %.2f (%.0f %%), node reduction %.2f (%.0f %%), wait for %s %.2f (%.0f "
      "%%)\n",
      step, compute, 100 * compute / step, reduce, 100 * reduce / step,
      s.at("servers").empty() ? "other nodes" : "servers", wait, 100 * wait / step);
  text += nodes_text(s);
  const auto a_sample = s.value("bytes_per_sample", nlohmann::ordered_json());
  if (a_sample.is_number()) {
    text += printed("  a sample     %.0f bytes pushed and pulled, all nodes together\n", a_sample.get<double>());
  }
  text += servers_text(s);
  text += "  digest       " + s.at("digest").get<std::string>();
  for (const char* before = ", computed with "; const auto& kind : s.value("computed_with", nlohmann::ordered_json())) {
    text += std::exchange(before, " and ") + kind.get<std::string>();
  }
  text += "\n";
  return text;
}

}  // namespace tributary::cli
