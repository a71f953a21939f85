#include "train/report.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/clock.h"
#include "common/base/printed.h"
#include "train/finite.h"

namespace tributary::train {

namespace {

constexpr std::uint64_t kRedrawNs = 250'000'000;
// Without a terminal: a line per epoch, and at least one every ten seconds.
constexpr std::uint64_t kLineNs = 10'000'000'000;
constexpr int kBarCells = 20;

double per_round_ms(std::uint64_t ns, std::uint64_t rounds) {
  return rounds == 0 ? 0.0 : static_cast<double>(ns) * 1e-6 / static_cast<double>(rounds);
}

std::string split_text(const StepSplit& split, std::uint64_t rounds) {
  const double total = std::max(per_round_ms(split.total_ns(), rounds), 1e-9);
  const auto percent = [&](std::uint64_t ns) { return 100.0 * per_round_ms(ns, rounds) / total; };
  return printed("round %.1f ms: compute %.0f %%, reduce %.0f %%, wait %.0f %%", total, percent(split.compute_ns),
                 percent(split.reduce_ns), percent(split.wait_ns));
}

std::string megabytes(std::uint64_t bytes) {
  return printed("%.1f MB", static_cast<double>(bytes) * 1e-6);
}

}  // namespace

void GateTotals::add(const GateDecision& decision) {
  if (!decision.known()) return;
  ++rounds;
  clipped += decision.verdict == GateVerdict::kClipped ? 1 : 0;
  skipped += decision.verdict == GateVerdict::kSkipped ? 1 : 0;
  last = decision;
}

std::string to_json(const RunSummary& summary) {
  nlohmann::ordered_json json = {
      {"job", summary.job},
      {"rank", summary.rank},
      {"world_size", summary.world_size},
      {"standalone", summary.standalone},
      {"model_bytes", summary.model_bytes},
      {"rounds", summary.rounds},
      {"last_round", summary.last_round},
      {"test_accuracy", nullptr},
      {"test_loss", nullptr},
      {"train_loss", summary.train.mean_loss()},
      {"train_loss_sum", summary.train.loss_sum},
      {"train_correct", summary.train.correct},
      {"train_samples", summary.train.samples},
      {"digest", summary.digest},
      {"seconds", summary.seconds()},
      {"samples", summary.samples_here},
      {"samples_per_s", summary.samples_per_second()},
      {"step_split",
       {{"compute_ms", per_round_ms(summary.split.compute_ns, summary.rounds_here)},
        {"reduce_ms", per_round_ms(summary.split.reduce_ns, summary.rounds_here)},
        {"wait_ms", per_round_ms(summary.split.wait_ns, summary.rounds_here)}}},
      {"bytes_pushed", summary.bytes_pushed},
      {"bytes_pulled", summary.bytes_pulled},
      {"stopped", summary.stopped},
      {"stop_reason", summary.stop_reason},
      {"not_saved", summary.not_saved},
      {"not_finite", summary.not_finite},
      {"resumed_from", summary.resumed_from},
      {"restarts", summary.restarts},
      {"computes_with", summary.computes_with},
  };
  if (summary.test) {
    json["test_accuracy"] = summary.test->accuracy();
    json["test_loss"] = summary.test->mean_loss();
  }
  if (summary.partial) {
    json["samples_left"] = summary.samples_left;
  }
  if (summary.gate.rounds > 0) {
    json["gate"] = {{"rounds", summary.gate.rounds},
                    {"clipped", summary.gate.clipped},
                    {"skipped", summary.gate.skipped},
                    {"gradient_norm", summary.gate.last.norm},
                    {"loss_scale", summary.gate.last.loss_scale}};
  }
  if (summary.clocks) {
    json["staleness"] = {{"pulls", summary.pulls}, {"mean", summary.mean_staleness()}, {"max", summary.staleness_max}};
  }
  // A job's name may come from anywhere; bytes that are no UTF-8 must not throw.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_text(const RunSummary& summary) {
  std::string text =
      "job " + summary.job + ": round " + std::to_string(summary.rounds) + " of " + std::to_string(summary.last_round);
  text += summary.standalone ? ", standalone, " : ", ";
  text += std::to_string(summary.world_size) + (summary.world_size == 1 ? " rank on " : " ranks on ") +
          std::to_string(summary.nodes) + (summary.nodes == 1 ? " node\n" : " nodes\n");
  if (summary.resumed_from > 0) text += "  resumed      after round " + std::to_string(summary.resumed_from) + "\n";
  if (summary.restarts > 0) text += "  restarts     " + std::to_string(summary.restarts) + "\n";
  if (summary.test) {
    text += printed("  test         accuracy %.4f, loss %.4f\n", summary.test->accuracy(), summary.test->mean_loss());
  }
  if (summary.train.samples > 0) {
    const bool all = summary.standalone || summary.world_size == 1;
    text +=
        printed("  training     loss %.4f, accuracy %.4f (last epoch%s)\n", summary.train.mean_loss(),
                summary.train.accuracy(), all ? "" : (", rank " + std::to_string(summary.rank) + "'s samples").c_str());
  }
  if (summary.rounds_here > 0) {
    text += printed("  throughput   %.0f samples/s %s, %.1f s\n", summary.samples_per_second(),
                    summary.partial ? "on this rank" : "over all ranks", summary.seconds());
    text += "  time         " + split_text(summary.split, summary.rounds_here) + "\n";
  }
  if (!summary.standalone) {
    text += "  network      " + megabytes(summary.bytes_pushed) + " pushed and " + megabytes(summary.bytes_pulled) +
            " pulled by this node\n";
  }
  if (summary.partial) {
    text += printed("  late         %llu samples left for want of time\n",
                    static_cast<unsigned long long>(summary.samples_left));
  }
  if (summary.gate.rounds > 0) {
    text += printed("  gate         %llu of %llu rounds clipped, %llu skipped; last norm %.4g, next loss scale %g\n",
                    static_cast<unsigned long long>(summary.gate.clipped),
                    static_cast<unsigned long long>(summary.gate.rounds),
                    static_cast<unsigned long long>(summary.gate.skipped), summary.gate.last.norm,
                    static_cast<double>(summary.gate.last.loss_scale));
  }
  if (summary.clocks) {
    text += printed("  staleness    mean %.2f, at most %llu clocks behind, over %llu chunks pulled by this node\n",
                    summary.mean_staleness(), static_cast<unsigned long long>(summary.staleness_max),
                    static_cast<unsigned long long>(summary.pulls));
  }
  if (!summary.digest.empty()) {
    text += "  digest       " + summary.digest + ", computed with " + summary.computes_with + "\n";
  }
  if (summary.stopped) {
    text += "stopped after round " + std::to_string(summary.rounds);
    if (!summary.stop_reason.empty()) text += " (" + summary.stop_reason + ")";
    text += summary.not_saved.empty() ? "; run again to continue\n" : "\n";
  }
  if (!summary.not_saved.empty()) text += "not saved: " + summary.not_saved + "\n";
  if (!summary.not_finite.empty()) text += "not finite: " + summary.not_finite + kNotFiniteAdvice + "\n";
  return text;
}

ProgressBar::Style ProgressBar::style_for(std::FILE* stream) {
  return isatty(fileno(stream)) != 0 ? Style::kBar : Style::kLines;
}

ProgressBar::ProgressBar(std::FILE* stream, Style style, std::string whose)
    : stream_(stream), style_(style), whose_(std::move(whose)), shown_ns_(steady_ns()) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::round(const RoundReport& report, std::uint64_t rounds_per_epoch) {
  if (style_ == Style::kOff) return;
  stats_ += report.stats;
  split_ += report.split;
  samples_ += report.global_samples;
  ++rounds_;
  const bool ends_epoch = report.round % rounds_per_epoch == 0;
  const bool due = steady_ns() - shown_ns_ >= (style_ == Style::kBar ? kRedrawNs : kLineNs);
  if (due || ends_epoch || report.test || report.round == report.rounds) show(report, rounds_per_epoch);
}

void ProgressBar::show(const RoundReport& report, std::uint64_t rounds_per_epoch) {
  const std::uint64_t epoch = (report.round - 1) / rounds_per_epoch + 1;
  const std::uint64_t epochs = (report.rounds + rounds_per_epoch - 1) / rounds_per_epoch;
  const double seconds = std::max(static_cast<double>(split_.total_ns()) * 1e-9, 1e-9);
  std::string text =
      printed("epoch %llu/%llu", static_cast<unsigned long long>(epoch), static_cast<unsigned long long>(epochs));
  if (style_ == Style::kBar) {
    const int filled = static_cast<int>(kBarCells * report.round / std::max<std::uint64_t>(report.rounds, 1));
    text += " [" + std::string(filled, '#') + std::string(kBarCells - filled, '.') + "]";
  }
  text += " round " + std::to_string(report.round) + "/" + std::to_string(report.rounds);
  text += printed("  loss %.4f", stats_.mean_loss());
  if (!whose_.empty()) text += " (" + whose_ + ")";
  text += printed("  %.0f samples/s  ", static_cast<double>(samples_) / seconds) + split_text(split_, rounds_);
  if (report.gate.known()) {
    text += report.gate.verdict == GateVerdict::kSkipped
                ? printed("  skipped, loss scale now %g", static_cast<double>(report.gate.loss_scale))
                : printed("  gradient norm %.3g%s", report.gate.norm,
                          report.gate.verdict == GateVerdict::kClipped ? " (clipped)" : "");
  }
  if (report.test) text += printed("  test accuracy %.4f", report.test->accuracy());
  clear();
  const bool keep = style_ == Style::kLines || report.test.has_value();
  std::fprintf(stream_, keep ? "%s\n" : "%s", text.c_str());
  std::fflush(stream_);
  bar_shown_ = !keep;
  shown_ns_ = steady_ns();
  stats_ = {};
  split_ = {};
  samples_ = 0;
  rounds_ = 0;
}

void ProgressBar::note(const std::string& text) {
  clear();
  std::fprintf(stream_, "%s\n", text.c_str());
  std::fflush(stream_);
}

void ProgressBar::clear() {
  if (!bar_shown_) return;
  std::fputs("\r\x1b[K", stream_);  // back to the line's start, erase to its end
  std::fflush(stream_);
  bar_shown_ = false;
}

}  // namespace tributary::train
