#include "tools/cluster/progress_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/config/json_text.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxDatagram = 2048;
constexpr int kReceiveBuffer = 4 << 20;  // rounds of many ranks while no one reads; the excess is dropped

}  // namespace

std::optional<ProgressReport> parse_progress(std::string_view datagram) {
  const auto json = json_in(datagram);
  if (!json.is_object()) return {};
  ProgressReport report;
  const auto take = [&json](const char* key, auto& into) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return false;
    found->get_to(into);
    return true;
  };
  if (!take("rank", report.rank) || !take("round", report.round) || !take("samples", report.samples)) return {};
  take("world_size", report.world_size);
  take("restarts", report.restarts);
  take("resumed", report.resumed);
  take("complete", report.complete);
  take("rounds", report.rounds);
  take("samples_sum", report.samples_sum);
  take("compute_ns", report.compute_ns);
  take("reduce_ns", report.reduce_ns);
  take("wait_ns", report.wait_ns);
  if (std::uint64_t correct = 0; take("correct", correct)) report.correct = correct;
  if (const auto loss = json.find("loss_sum"); loss != json.end()) {
    // JSON has no NaN.
    report.loss_sum = loss->is_number() ? loss->get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  if (const auto test = json.find("test_accuracy"); test != json.end() && test->is_number()) {
    report.test_accuracy = test->get<double>();
  }
  return report;
}

Result<ProgressSocket> ProgressSocket::listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::kInvalidArgument, "the socket path " + path + " is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ::unlink(path.c_str());
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ProgressSocket result(fd);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return fail(ErrorCode::kIo, "cannot listen on " + path + ": " + std::strerror(errno));
  ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kReceiveBuffer, sizeof kReceiveBuffer);
  return result;
}

ProgressSocket::ProgressSocket(ProgressSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

ProgressSocket::~ProgressSocket() {
  if (fd_ >= 0) ::close(fd_);
}

void ProgressSocket::drain(const std::function<void(std::string_view)>& take) const {
  char buffer[kMaxDatagram];
  for (ssize_t got = 0; (got = ::recv(fd_, buffer, sizeof buffer, 0)) > 0;)
    take({buffer, static_cast<std::size_t>(got)});
}

}  // namespace tributary
