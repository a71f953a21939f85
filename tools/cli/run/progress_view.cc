#include "tools/cli/run/progress_view.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tributary::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRedraw{250};
constexpr std::chrono::seconds kLine{5};
constexpr int kBarCells = 24;

}  // namespace

Result<ProgressView> ProgressView::listen(const std::string& socket_path, bool quiet) {
  auto socket = ProgressSocket::listen(socket_path);
  if (!socket) return tl::unexpected(socket.error());
  return ProgressView(std::move(*socket), quiet);
}

ProgressView::ProgressView(ProgressSocket socket, bool quiet)
    : socket_(std::move(socket)), quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) != 0), shown_(Clock::now()) {}

ProgressView::ProgressView(ProgressView&& other) noexcept = default;

ProgressView::~ProgressView() {
  clear();
}

void ProgressView::take(std::string_view datagram) {
  const auto report = parse_progress(datagram);
  if (!report) return;
  round_ = std::max(round_, report->round);
  rounds_ = report->rounds;
  const auto add = [&](Mean& mean, const auto& told) {
    if (!told) return;
    mean.sum += static_cast<double>(*told);
    mean.samples += static_cast<double>(report->samples);
  };
  add(loss_, report->loss_sum);
  add(accuracy_, report->correct);
  samples_ += report->samples;
  compute_ns_ += report->compute_ns;
  reduce_ns_ += report->reduce_ns;
  wait_ns_ += report->wait_ns;
  test_accuracy_ = report->test_accuracy.value_or(test_accuracy_);
}

void ProgressView::update() {
  socket_.drain([this](std::string_view datagram) {
    take(datagram);
    if (test_accuracy_ < 0.0) return;
    show(true);
    test_accuracy_ = -1.0;
  });
  const auto since = Clock::now() - shown_;
  if (samples_ > 0 && since >= (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine))) show(!terminal_);
}

void ProgressView::show(bool keep) {
  const auto now = Clock::now();
  if (!quiet_ && samples_ > 0) {
    clear();
    const double seconds = std::chrono::duration<double>(now - shown_).count();
    const auto n = static_cast<double>(samples_);
    const auto total = static_cast<double>(compute_ns_ + reduce_ns_ + wait_ns_);
    if (terminal_ && rounds_ > 0) {
      const int filled = static_cast<int>(std::min<std::uint64_t>(kBarCells * round_ / rounds_, kBarCells));
      std::printf("[%s%s] ", std::string(filled, '#').c_str(), std::string(kBarCells - filled, '.').c_str());
    }
    std::printf("round %llu", static_cast<unsigned long long>(round_));
    if (rounds_ > 0) std::printf("/%llu", static_cast<unsigned long long>(rounds_));
    if (loss_.samples > 0.0) std::printf("  loss %.4f", loss_.sum / loss_.samples);
    if (accuracy_.samples > 0.0) std::printf("  accuracy %.4f", accuracy_.sum / accuracy_.samples);
    std::printf("  %.0f samples/s", n / std::max(seconds, 1e-3));
    if (total > 0.0) {
      std::printf("  compute %.0f %%, reduce %.0f %%, wait %.0f %%", 100.0 * static_cast<double>(compute_ns_) / total,
                  100.0 * static_cast<double>(reduce_ns_) / total, 100.0 * static_cast<double>(wait_ns_) / total);
    }
    if (test_accuracy_ >= 0.0) std::printf("  test accuracy %.4f", test_accuracy_);
    if (keep) std::printf("\n");
    std::fflush(stdout);
    drawn_ = !keep;
  }
  shown_ = now;
  loss_ = accuracy_ = {};
  samples_ = compute_ns_ = reduce_ns_ = wait_ns_ = 0;
}

void ProgressView::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stdout);  // to the line's start, erase to its end
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace tributary::cli
