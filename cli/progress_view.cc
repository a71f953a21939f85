#include "cli/progress_view.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace tributary::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRedraw{250};
constexpr std::chrono::seconds kLine{5};
constexpr int kBarCells = 24;
constexpr std::size_t kMaxDatagram = 2048;

}  // namespace

Result<ProgressView> ProgressView::listen(const std::string& socket_path, bool quiet) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument, "the socket path " + socket_path + " is too long");
  }
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size() + 1);
  ::unlink(socket_path.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return fail(ErrorCode::kIo, "cannot listen on " + socket_path + ": " + std::strerror(error));
  }
  return ProgressView(fd, quiet);
}

ProgressView::ProgressView(int fd, bool quiet)
    : fd_(fd), quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) != 0), shown_(Clock::now()) {}

ProgressView::ProgressView(ProgressView&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), quiet_(other.quiet_), terminal_(other.terminal_), shown_(other.shown_) {}

ProgressView::~ProgressView() {
  clear();
  if (fd_ >= 0) ::close(fd_);
}

void ProgressView::take(std::string_view datagram) {
  const auto json = nlohmann::json::parse(datagram, nullptr, false);
  if (!json.is_object()) return;
  try {
    round_ = std::max(round_, json.value("round", std::uint64_t{0}));
    rounds_ = json.value("rounds", rounds_);
    loss_sum_ += json.value("loss_sum", 0.0);
    correct_ += json.value("correct", std::uint64_t{0});
    samples_ += json.value("samples", std::uint64_t{0});
    compute_ns_ += json.value("compute_ns", std::uint64_t{0});
    reduce_ns_ += json.value("reduce_ns", std::uint64_t{0});
    wait_ns_ += json.value("wait_ns", std::uint64_t{0});
    test_accuracy_ = json.value("test_accuracy", test_accuracy_);
  } catch (const nlohmann::json::exception&) {
    // Not one of ours; it is only for show.
  }
}

void ProgressView::update() {
  char buffer[kMaxDatagram];
  while (true) {
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got <= 0) break;
    take({buffer, static_cast<std::size_t>(got)});
    if (test_accuracy_ >= 0.0) {
      show(true);
      test_accuracy_ = -1.0;
    }
  }
  const auto since = Clock::now() - shown_;
  if (samples_ > 0 && since >= (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine))) show(!terminal_);
}

void ProgressView::show(bool keep) {
  const auto now = Clock::now();
  if (!quiet_ && samples_ > 0) {
    clear();
    const double seconds = std::chrono::duration<double>(now - shown_).count();
    const auto n = static_cast<double>(samples_);
    const auto total = std::max(static_cast<double>(compute_ns_ + reduce_ns_ + wait_ns_), 1.0);
    if (terminal_) {
      const int filled =
          rounds_ == 0 ? 0 : static_cast<int>(std::min<std::uint64_t>(kBarCells * round_ / rounds_, kBarCells));
      std::printf("[%s%s] ", std::string(filled, '#').c_str(), std::string(kBarCells - filled, '.').c_str());
    }
    std::printf(
        "round %llu/%llu  loss %.4f  accuracy %.4f  %.0f samples/s  compute %.0f %%, reduce %.0f %%, wait %.0f %%",
        static_cast<unsigned long long>(round_), static_cast<unsigned long long>(rounds_), loss_sum_ / n,
        static_cast<double>(correct_) / n, n / std::max(seconds, 1e-3),
        100.0 * static_cast<double>(compute_ns_) / total, 100.0 * static_cast<double>(reduce_ns_) / total,
        100.0 * static_cast<double>(wait_ns_) / total);
    if (test_accuracy_ >= 0.0) std::printf("  test accuracy %.4f", test_accuracy_);
    if (keep) std::printf("\n");
    std::fflush(stdout);
    drawn_ = !keep;
  }
  shown_ = now;
  loss_sum_ = 0.0;
  correct_ = samples_ = compute_ns_ = reduce_ns_ = wait_ns_ = 0;
}

void ProgressView::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stdout);  // to the line's start, erase to its end
  std::fflush(stdout);
  drawn_ = false;
}

}  // namespace tributary::cli
