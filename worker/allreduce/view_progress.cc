#include "worker/allreduce/view_progress.h"

#include "common/base/assert.h"

namespace tributary {

// Each address is a byte of length, then as many bytes.
std::vector<std::byte> encode(const Addresses& addresses) {
  std::vector<std::byte> out;
  for (const std::vector<std::byte>& address : addresses) {
    TRIB_ASSERT(address.size() < 256);
    out.push_back(static_cast<std::byte>(address.size()));
    out.insert(out.end(), address.begin(), address.end());
  }
  return out;
}

ViewProgress::Phase ViewProgress::await_close() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed(); });
  return phase_;
}

void ViewProgress::publish(std::uint32_t node, const std::vector<std::byte>& encoded) {
  {
    const std::lock_guard lock(mutex_);
    published_.try_emplace(node, encoded);
  }
  changed_.notify_all();
}

Result<Addresses> ViewProgress::addresses_of(std::uint32_t node, std::size_t others) {
  std::vector<std::byte> bytes;
  const auto published = [&] {
    const auto at = published_.find(node);
    if (at != published_.end()) bytes = at->second;
    return at != published_.end();
  };
  if (const Status came = await(published, patience_); !came) {
    if (came.error().code != ErrorCode::kTimeout) return tl::unexpected(came.error());
    return fail(ErrorCode::kTimeout, "node " + std::to_string(node) + " has not said its address for " +
                                         std::to_string(patience_.count()) + " ms; is its worker daemon alive?");
  }
  Addresses addresses;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = std::to_integer<std::size_t>(bytes[at++]);
    if (length > bytes.size() - at) break;
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    addresses.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
    at += length;
  }
  if (const std::size_t expected = kControlAddresses + others; addresses.size() != expected) {
    return fail(ErrorCode::kMalformed, "node " + std::to_string(node) + " said " + std::to_string(addresses.size()) +
                                           " addresses instead of " + std::to_string(expected) +
                                           "; do all workers have the same release and configuration?");
  }
  return addresses;
}

void ViewProgress::failed(LaneFailure failure) {
  {
    const std::lock_guard lock(mutex_);
    if (over()) return;
    phase_ = Phase::kFailed;
  }
  changed_.notify_all();
  tell(std::move(failure));
}

void ViewProgress::failed(const std::string& doing, const Error& error) {
  if (error.code == ErrorCode::kStopped) return;
  const bool gone = error.code == ErrorCode::kUnavailable;
  const std::string message = place() + (doing.empty() ? "" : ", " + doing) + ": " + error.message;
  failed({gone ? LaneFailure::Kind::kViewOver : LaneFailure::Kind::kRefused, 0, {error.code, message}});
}

std::string ViewProgress::place() const {
  return "node " + std::to_string(job_->spec().node.value) + " of " + std::to_string(job_->view().nodes);
}

}  // namespace tributary
