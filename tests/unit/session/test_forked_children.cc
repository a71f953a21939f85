// Children of a process that is attached and forks: what they have of the connection.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "session/shared/attach_socket.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::forked_children_test {
namespace {

using testing::TempDir;

// A connection and what the worker has of it.
struct Connected {
  Connected() {
    const std::string path = directory / "w.sock";
    const auto address = unix_address(path);
    listener = FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) == 0);
    REQUIRE(::listen(listener.get(), 1) == 0);
    auto connected = required(AttachSocket::connect(path));
    trainer.emplace(std::move(connected));
    worker.emplace(AttachSocket::adopt(FileDescriptor(::accept(listener.get(), nullptr, nullptr))));
  }
  ErrorCode what_the_worker_sees(std::chrono::milliseconds within) {
    const auto got = worker->receive(std::chrono::steady_clock::now() + within);
    return got ? ErrorCode::kInternal : got.error().code;
  }

  TempDir directory;
  FileDescriptor listener;
  std::optional<AttachSocket> trainer, worker;
};

TEST_CASE("a forked child has no part in its parent's connection, and may close what it has of it") {
  Connected one;
  const int number = one.trainer->fd();
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (one.trainer->send(InitialValues{})) _exit(2);
    if (one.trainer->fd() != number) _exit(3);
    one.trainer.reset();
    const pid_t grandchild = fork();  // of who has nothing left
    if (grandchild == 0) _exit(0);
    int status = -1;
    waitpid(grandchild, &status, 0);
    if (status != 0) _exit(4);
    while (true) pause();
  }
  CHECK(one.what_the_worker_sees(std::chrono::milliseconds(300)) == ErrorCode::kTimeout);
  REQUIRE(one.trainer->send(InitialValues{}));  // the parent's is whole
  CHECK(one.worker->receive(std::chrono::steady_clock::now() + std::chrono::seconds(20)));
  one.trainer.reset();
  CHECK(one.what_the_worker_sees(std::chrono::seconds(20)) == ErrorCode::kUnavailable);
  int status = -1;
  CHECK(waitpid(child, &status, WNOHANG) == 0);  // it is there all the time
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

TEST_CASE("a connection that has moved is still not the children's, and one that is closed says nothing of others") {
  Connected one, other;
  const int closed = one.trainer->fd();
  one.trainer = std::move(*other.trainer);  // the two change places
  other.trainer.reset();
  FileDescriptor file(::dup2(one.listener.get(), closed));  // the number is another's now
  int told[2];
  REQUIRE(::pipe(told) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int listening = 0;
    socklen_t size = sizeof listening;
    ::getsockopt(closed, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size);
    if (::write(told[1], &listening, sizeof listening) != sizeof listening) _exit(2);
    while (true) pause();
  }
  int listening = 0;
  REQUIRE(::read(told[0], &listening, sizeof listening) == sizeof listening);
  CHECK(listening == 1);
  one.trainer.reset();
  CHECK(other.what_the_worker_sees(std::chrono::seconds(20)) == ErrorCode::kUnavailable);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  ::close(told[0]);
  ::close(told[1]);
}

}  // namespace
}  // namespace tributary::forked_children_test
