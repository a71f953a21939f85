#include "train/progress.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace tributary::train {

std::string to_json(const RoundReport& report) {
  nlohmann::ordered_json json = {
      {"rank", report.rank},
      {"world_size", report.world_size},
      {"restarts", report.restarts},
      {"resumed", report.resumed},
      {"complete", report.complete},
      {"round", report.round},
      {"rounds", report.rounds},
      {"loss_sum", report.stats.loss_sum},
      {"correct", report.stats.correct},
      {"samples", report.stats.samples},
      {"global_samples", report.global_samples},
      {"samples_sum", report.samples_sum},
      {"compute_ns", report.split.compute_ns},
      {"reduce_ns", report.split.reduce_ns},
      {"wait_ns", report.split.wait_ns},
  };
  if (report.gate.known()) {
    json["gradient_norm"] = report.gate.norm;
    json["loss_scale"] = report.gate.loss_scale;
    json["skipped"] = report.gate.verdict == GateVerdict::kSkipped;
  }
  if (report.test) {
    json["test_loss"] = report.test->mean_loss();
    json["test_accuracy"] = report.test->accuracy();
  }
  return json.dump();
}

Result<ProgressSender> ProgressSender::to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return fail(ErrorCode::kInvalidArgument, "--progress-socket " + path + ": a socket's path has 1 to " +
                                                 std::to_string(sizeof(address.sun_path) - 1) +
                                                 " characters; use a shorter one");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return fail(ErrorCode::kIo, std::string("cannot make a Unix socket: ") + std::strerror(errno));
  return ProgressSender(fd, address);
}

ProgressSender::ProgressSender(ProgressSender&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), address_(other.address_) {}

ProgressSender::~ProgressSender() {
  if (fd_ >= 0) ::close(fd_);
}

void ProgressSender::send(const RoundReport& report) const {
  const std::string text = to_json(report);
  // The result does not matter, see the top of progress.h.
  [[maybe_unused]] const ssize_t sent = ::sendto(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                                 reinterpret_cast<const sockaddr*>(&address_), sizeof(address_));
}

}  // namespace tributary::train
