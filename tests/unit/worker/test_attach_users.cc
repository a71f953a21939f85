// Users that may meet at the attach socket: one user, or root with that user.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "common/config/job_json.h"
#include "tests/unit/other_user.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node_fixture.h"

namespace tributary::testing::attach_users_test {
namespace {

// Bound in the test's folder, which others may enter; who listens is to be said.
struct Bound {
  Bound() {
    const auto address = unix_address(path);
    REQUIRE(::chmod(dir.path().c_str(), 0755) == 0);
    REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) == 0);
  }
  bool listens() const { return ::listen(fd.get(), 4) == 0; }

  TempDir dir;
  std::string path = dir / "w.sock";
  FileDescriptor fd = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
};

TEST_CASE("the attach socket is its user's alone, whatever the umask") {
  const mode_t before = ::umask(0);
  const FakeNode node;
  ::umask(before);
  struct stat info {};
  REQUIRE(::stat(node.socket().c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  if (!can_be_another_user()) return;
  REQUIRE(::chmod(node.directory.path().c_str(), 0755) == 0);
  CHECK(as_another_user([&] {
    const auto socket = AttachSocket::connect(node.socket());
    return !socket && socket.error().code == ErrorCode::kIo &&
           contains(socket.error().message, node.socket() + " is not open to user 65534");
  }));
}

TEST_CASE("a worker turns another user's process away, also where the socket is open to it") {
  if (!can_be_another_user()) return;
  RunningNode node;
  REQUIRE(::chmod(node.directory.path().c_str(), 0755) == 0);
  REQUIRE(::chmod(node.socket().c_str(), 0666) == 0);
  const SessionOptions options = node.session_options();
  AttachRequest request{.job_json = to_canonical_json(options.job), .tensors = small_model()};
  CHECK(as_another_user([&] {
    auto socket = AttachSocket::connect(node.socket());
    if (!socket || !socket->send(request)) return false;
    const auto got = socket->receive(std::chrono::steady_clock::now() + std::chrono::seconds(20));
    const auto* error = got ? std::get_if<AttachError>(&got->message) : nullptr;
    return error != nullptr && contains(error->message, "of user 65534; start trainers and tributary-worker");
  }));
  CHECK(node.server->refused() == 1);
  CHECK(node.server->summaries().empty());
  CHECK(node.coordinator.all<JoinJob>().empty());
  auto own = node.attach(options);  // goes on for whom it is
  node.admit();
  CHECK(own.get());
}

TEST_CASE(
    "a trainer gives nothing to another user's process that answers where its worker should, and says so at once") {
  if (!can_be_another_user()) return;
  const Bound bound;
  const OtherUser impostor([&] { return bound.listens(); });
  const auto socket = failure_of(AttachSocket::connect(bound.path));
  CHECK(socket.code == ErrorCode::kIo);
  for (const std::string& part : {bound.path, "process " + std::to_string(impostor.pid()) + " of user 65534",
                                  std::string("nor root"), std::string("start tributary-worker as this user")}) {
    CHECK_MESSAGE(contains(socket.message, part), socket.message);
  }
  SessionOptions options;
  options.socket = bound.path;
  options.job.name = "a-job";
  const auto began = std::chrono::steady_clock::now();
  const auto session = failure_of(Session::attach(options, small_model()));
  CHECK(contains(session.message, "neither this user"));
  CHECK(std::chrono::steady_clock::now() - began < options.attach_timeout / 4);
}

TEST_CASE("another user's trainer may have root's worker") {
  if (!can_be_another_user()) return;
  const Bound bound;
  REQUIRE(bound.listens());
  REQUIRE(::chmod(bound.path.c_str(), 0666) == 0);
  CHECK(as_another_user([&] { return AttachSocket::connect(bound.path).has_value(); }));
}

TEST_CASE("a worker leaves another user's socket alone, and says who listens there") {
  if (!can_be_another_user()) return;
  const Bound bound;
  const OtherUser impostor([&] { return bound.listens(); });
  AttachServerOptions options;
  options.socket = bound.path;
  FakeCoordinator coordinator;
  FakeLanes lanes(1);
  const auto made = failure_of(AttachServer::create(options, coordinator, lanes, quiet_logger()));
  CHECK(contains(made.message, "somebody else listens there"));
  CHECK(contains(made.message, "of user 65534"));
  struct stat info {};
  CHECK(::lstat(bound.path.c_str(), &info) == 0);
}

}  // namespace
}  // namespace tributary::testing::attach_users_test
