// Deeds of another user of this machine: tests that are run by root ask it of a child process.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

namespace tributary::testing {

inline constexpr unsigned kOtherUser = 65534;

// False, and said, where only root can become somebody else.
inline bool can_be_another_user() {
  if (::geteuid() == 0) return true;
  MESSAGE("not run by root: what another user could do is not looked at");
  return false;
}

// A child process of another user's. `begin` is called there, and what it returns is kept until the end. REQUIRES:
// root.
class OtherUser {
 public:
  template <class Begin>
  explicit OtherUser(Begin begin) {
    REQUIRE(::pipe(begun_.data()) == 0);
    REQUIRE(::pipe(ends_.data()) == 0);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) be(begin);
    ::close(begun_[1]);
    ::close(ends_[0]);
    char sign = 0;
    if (::read(begun_[0], &sign, 1) != 1) sign = 0;
    CHECK_MESSAGE(sign == '+', "the other user's process could not begin");
  }
  ~OtherUser() {
    ::close(begun_[0]);
    ::close(ends_[1]);
    ::waitpid(child_, nullptr, 0);
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

  int pid() const { return child_; }

 private:
  template <class Begin>
  [[noreturn]] void be(Begin begin) {
    ::close(begun_[0]);
    ::close(ends_[1]);
    if (::setgid(kOtherUser) != 0 || ::setuid(kOtherUser) != 0) ::_exit(1);
    const auto kept = begin();
    char end = 0;
    const bool told = ::write(begun_[1], kept ? "+" : "-", 1) == 1;
    if (told && ::read(ends_[0], &end, 1) < 0) ::_exit(1);
    ::_exit(0);
  }

  std::array<int, 2> begun_{}, ends_{};
  pid_t child_ = -1;
};

// The answer of `question` as another user.
template <class Question>
bool as_another_user(Question question) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool is_other = ::setgid(kOtherUser) == 0 && ::setuid(kOtherUser) == 0;
    ::_exit(!is_other ? 2 : question() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) < 2);
  return status == 0;
}

}  // namespace tributary::testing
