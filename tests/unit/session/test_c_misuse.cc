// Mistakes of callers of the C interface before there is any worker daemon.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "session/c_boundary.h"
#include "tests/unit/expect.h"
#include "tests/unit/session/c_options.h"

namespace tributary::c_misuse_test {

using namespace testing;

namespace {

// The status of an attach that fails; no session comes of it.
tributary_status attach(const tributary_options& options) {
  int something = 0;
  auto* session = reinterpret_cast<tributary_session*>(&something);
  const tributary_status status = tributary_attach(&options, &session);
  CHECK(session == nullptr);
  return status;
}

}  // namespace

TEST_CASE("each status has a name, and one of a newer library has none") {
  CHECK(std::string(tributary_status_name(TRIBUTARY_OK)) == "TRIBUTARY_OK");
  CHECK(std::string(tributary_status_name(TRIBUTARY_INVALID_ARGUMENT)) == "TRIBUTARY_INVALID_ARGUMENT");
  CHECK(std::string(tributary_status_name(TRIBUTARY_UNAVAILABLE)) == "TRIBUTARY_UNAVAILABLE");
  CHECK(std::string(tributary_status_name(TRIBUTARY_NO_DEVICE)) == "TRIBUTARY_NO_DEVICE");
  for (const tributary_status unknown : {-1, 24, 1 << 30}) {
    CHECK(std::string(tributary_status_name(unknown)) == "TRIBUTARY_?");
  }
  CHECK(std::string(tributary_version()).find('.') != std::string::npos);
}

TEST_CASE("a thread has its own last error, which is bounded and stays valid text") {
  CHECK(tributary_start(nullptr) == TRIBUTARY_INVALID_ARGUMENT);
  const std::string mine = tributary_last_error();
  CHECK_FALSE(mine.empty());
  std::thread([] { CHECK(std::string(tributary_last_error()).empty()); }).join();
  for (std::size_t shift = 0; shift < 2; ++shift) {
    std::string text(shift, 'x');
    while (text.size() < 3 * c::kMaxLastError) text += "\xc3\xa4";
    CHECK(c::failed(Error{ErrorCode::kIo, text}) == 1 + static_cast<int>(ErrorCode::kIo));
    const std::string cut = tributary_last_error();
    CHECK(cut.size() < c::kMaxLastError);
    CHECK(cut.size() > c::kMaxLastError - 8);
    CHECK((cut.size() - shift - 3) % 2 == 0);
    CHECK(cut.substr(cut.size() - 4) == "\xa4...");
  }
  const std::string fits(c::kMaxLastError - 1, 'y');
  c::failed(Error{ErrorCode::kIo, fits});
  CHECK(tributary_last_error() == fits);
  c::failed(Error{ErrorCode::kIo, ""});
  CHECK(std::string(tributary_last_error()) == "TRIBUTARY_IO");
}

TEST_CASE("no exception leaves") {
  CHECK(c::fenced([]() -> Status { throw std::bad_alloc(); }) == TRIBUTARY_LIMIT);
  CHECK(failed_with(c::fenced([]() -> Status { throw std::runtime_error("of some kind"); }), TRIBUTARY_INTERNAL,
                    "of some kind"));
  CHECK(c::fenced([]() -> Status { throw 7; }) == TRIBUTARY_INTERNAL);
  CHECK(c::fenced_pointer([]() -> Result<int*> { throw 7; }) == nullptr);
}

TEST_CASE("null pointers are refused by every function") {
  const char* null = "NULL";
  COptions good;
  CHECK(failed_with(tributary_attach(&good.options, nullptr), TRIBUTARY_INVALID_ARGUMENT, null));
  tributary_session* session = nullptr;
  CHECK(failed_with(tributary_attach(nullptr, &session), TRIBUTARY_INVALID_ARGUMENT, "tributary_options is NULL"));
  tributary_view view{.size = sizeof view};
  CHECK(failed_with(tributary_get_view(nullptr, &view), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_start(nullptr), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(tributary_initial(nullptr, 0) == nullptr);
  CHECK(tributary_gradient(nullptr, 0) == nullptr);
  CHECK(tributary_parameters(nullptr, 0) == nullptr);
  CHECK(tributary_hold_parameters(nullptr) == nullptr);
  tributary_release_parameters(nullptr);
  CHECK(failed_with(tributary_keep(nullptr, 1, nullptr, 0), TRIBUTARY_INVALID_ARGUMENT, null));
  const void* state = nullptr;
  std::size_t size = 0;
  CHECK(failed_with(tributary_kept(nullptr, &state, &size), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_last_round(nullptr, 1), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_log(nullptr, 1, "loss", 0.5, 1), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_ready(nullptr, 0, 1, 0.1), TRIBUTARY_INVALID_ARGUMENT, null));
  tributary_step step;
  CHECK(failed_with(tributary_wait(nullptr, TRIBUTARY_ALL_TENSORS, &step), TRIBUTARY_INVALID_ARGUMENT, null));
  tributary_gate gate{.size = sizeof gate};
  CHECK(failed_with(tributary_get_gate(nullptr, 1, &gate), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_gather(nullptr, 1, 0, "a", 1, nullptr, nullptr, nullptr), TRIBUTARY_INVALID_ARGUMENT,
                    null));
  tributary_stats stats{.size = sizeof stats};
  CHECK(failed_with(tributary_get_stats(nullptr, &stats), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_finish(nullptr, TRIBUTARY_FINISHED, nullptr), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(failed_with(tributary_saved(nullptr), TRIBUTARY_INVALID_ARGUMENT, null));
  CHECK(std::string(tributary_stop_reason(nullptr)).empty());
  tributary_destroy(nullptr);
  tributary_recovery_handle_destroy(nullptr);
  tributary_recovery_handle_destroy(tributary_recovery_handle_create());
}

TEST_CASE("a struct whose size was not set is named") {
  for (const std::size_t absurd : {std::size_t{0}, std::size_t{8}, std::size_t{5000}, ~std::size_t{0}}) {
    COptions whole;
    whole.options.size = absurd;
    CHECK(failed_with(attach(whole.options), TRIBUTARY_INVALID_ARGUMENT,
                      "tributary_options says that its size is " + std::to_string(absurd)));
    COptions first;
    first.tensors[0].size = absurd;
    CHECK(failed_with(attach(first.options), TRIBUTARY_INVALID_ARGUMENT, "tensors[0] says that its size is"));
    COptions later;
    later.tensors[2].size = absurd;
    CHECK(failed_with(attach(later.options), TRIBUTARY_INVALID_ARGUMENT, "tensors[2] says that its size is"));
  }
  COptions mixed;
  mixed.tensors[1].size = offsetof(tributary_tensor, group);
  CHECK(failed_with(attach(mixed.options), TRIBUTARY_INVALID_ARGUMENT, "in all of them"));
}

TEST_CASE("how long an attach may take is the caller's word, else the environment's") {
  COptions o;
  o.options.attach_timeout_ms = 0;
  const char* const variable = "TRIBUTARY_ATTACH_TIMEOUT";
  for (const char* wrong : {"0", "-1", "soon", "1.5", "2 ", "604801", "99999999999"}) {
    ::setenv(variable, wrong, 1);
    CHECK(failed_with(attach(o.options), TRIBUTARY_INVALID_ARGUMENT,
                      std::string("environment variable TRIBUTARY_ATTACH_TIMEOUT='") + wrong +
                          "' is no number of seconds from 1 to 604800"));
  }
  ::setenv(variable, "1", 1);
  const auto began = std::chrono::steady_clock::now();
  CHECK(failed_with(attach(o.options), TRIBUTARY_UNAVAILABLE, "/nowhere/w.sock"));
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::seconds(1));
  ::setenv(variable, "600000", 1);
  o.options.attach_timeout_ms = 1;
  CHECK(failed_with(attach(o.options), TRIBUTARY_UNAVAILABLE, "/nowhere/w.sock"));
  ::unsetenv(variable);
}

TEST_CASE("an attach ends when the caller's flag says so") {
  COptions o;
  volatile int stops = 1;
  o.options.attach_timeout_ms = 600'000;
  o.options.stops = &stops;
  CHECK(failed_with(attach(o.options), TRIBUTARY_STOPPED, "told to stop while job 'a-job' waited for the worker"));
}

TEST_CASE("a program with a newer header is served as long as it asks for nothing new") {
  COptions good;
  good.options.attach_timeout_ms = 1;
  struct {
    tributary_options known;
    char newer[32];
  } options{good.options, {}};
  options.known.size = sizeof options;
  CHECK(failed_with(attach(options.known), TRIBUTARY_UNAVAILABLE, "/nowhere/w.sock"));
  options.newer[31] = 1;
  CHECK(failed_with(attach(options.known), TRIBUTARY_INVALID_ARGUMENT,
                    "set at byte " + std::to_string(sizeof options - 1)));
}

TEST_CASE("a program with an older header gets the values that absent members have") {
  COptions good;
  // Without attach_timeout_ms it would wait for two minutes; what comes after that is absent, and refused were it read.
  good.options.attach_timeout_ms = 1;
  good.options.size = offsetof(tributary_options, gradients_move);
  good.options.device = -5;
  CHECK(failed_with(attach(good.options), TRIBUTARY_UNAVAILABLE, "/nowhere/w.sock"));

  struct OlderTensor {
    std::size_t size;
    const char* name;
    const std::uint64_t* shape;
    std::uint32_t dimensions;
    std::uint32_t group;  // where there would be padding
  };
  const OlderTensor tensors[2] = {{sizeof(OlderTensor), "weight", good.weight_shape, 2, 0},
                                  {sizeof(OlderTensor), "weight", good.bias_shape, 1, 0}};
  good.options.tensors = reinterpret_cast<const tributary_tensor*>(tensors);
  good.options.tensor_count = 2;
  CHECK(failed_with(attach(good.options), TRIBUTARY_INVALID_ARGUMENT, "tensor 1 has the name 'weight'"));
}

TEST_CASE("declarations that no job can have are refused before a worker is looked for") {
  const auto refused = [](const char* part, auto&& spoil) {
    COptions options;
    spoil(options);
    const bool right = failed_with(attach(options.options), TRIBUTARY_INVALID_ARGUMENT, part);
    INFO(tributary_last_error());
    CHECK(right);
  };
  refused("declares no tensors", [](COptions& o) { o.options.tensor_count = 0; });
  refused("declares no tensors", [](COptions& o) { o.options.tensors = nullptr; });
  refused("tensor_count is", [](COptions& o) { o.options.tensor_count = ~std::size_t{0}; });
  refused("tensors[1] has no name", [](COptions& o) { o.tensors[1].name = nullptr; });
  refused("empty name", [](COptions& o) { o.tensors[1].name = ""; });
  refused("of an earlier one", [](COptions& o) { o.tensors[2].name = "bias"; });
  refused("its shape is NULL", [](COptions& o) { o.tensors[2].shape = nullptr; });
  refused("4000000000 dimensions", [](COptions& o) { o.tensors[2].dimensions = 4'000'000'000u; });
  refused("dimension of 0", [](COptions& o) { o.bias_shape[0] = 0; });
  refused("parameters", [](COptions& o) { o.bias_shape[0] = ~std::uint64_t{0}; });
  const std::string name(5000, 'n'), kind(200, 'k');
  refused("more than 1024 bytes", [&](COptions& o) { o.tensors[0].name = name.c_str(); });
  refused("computes_with has more than", [&](COptions& o) { o.options.computes_with = kind.c_str(); });
  refused("no UTF-8", [&](COptions& o) { o.options.computes_with = "\xff"; });
  refused("device is -2", [](COptions& o) { o.options.device = -2; });
  refused("job is NULL", [](COptions& o) { o.options.job = nullptr; });
  // A scalar has no shape.
  COptions scalar;
  scalar.tensors[2].dimensions = 0;
  scalar.tensors[2].shape = nullptr;
  scalar.options.attach_timeout_ms = 1;
  CHECK(attach(scalar.options) == TRIBUTARY_UNAVAILABLE);
}

TEST_CASE("a job's text is TOML, or JSON if it begins with a brace") {
  COptions o;
  o.options.attach_timeout_ms = 1;
  const auto status_of = [&](const char* job) {
    o.options.job = job;
    return attach(o.options);
  };
  CHECK(status_of("[job]\nname = \"a\"\n[optimizer]\nname = \"sgd\"\n") == TRIBUTARY_UNAVAILABLE);
  CHECK(status_of(" \n{\"job\":{\"name\":\"a\"}}") == TRIBUTARY_UNAVAILABLE);
  CHECK(failed_with(status_of("[job]\nnmae = \"a\"\n"), TRIBUTARY_CONFIG, "nmae"));
  CHECK(failed_with(status_of("{\"job\":{\"nmae\":\"a\"}}"), TRIBUTARY_CONFIG, "nmae"));
  CHECK(status_of("{\"job\":") == TRIBUTARY_CONFIG);
  CHECK(status_of("/a/path.toml") == TRIBUTARY_CONFIG);
  const std::string large(2u << 20, ' ');
  CHECK(failed_with(status_of(large.c_str()), TRIBUTARY_CONFIG, "bytes"));
}

TEST_CASE("where the rank stands must be possible, and may come from the environment") {
  COptions o;
  o.options.attach_timeout_ms = 1;
  o.options.rank = 3;
  CHECK(failed_with(attach(o.options), TRIBUTARY_TOPOLOGY, "rank 3 does not fit"));
  o.options.from_environment = 1;
  const char* names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"};
  for (const char* name : names) unsetenv(name);
  CHECK(failed_with(attach(o.options), TRIBUTARY_TOPOLOGY, "environment variable RANK is not set"));
  const char* values[] = {"1", "2", "1", "2", "0"};
  for (int i = 0; i < 5; ++i) setenv(names[i], values[i], 1);
  CHECK(attach(o.options) == TRIBUTARY_UNAVAILABLE);
  setenv("TRIBUTARY_RANK", "0", 1);
  CHECK(failed_with(attach(o.options), TRIBUTARY_TOPOLOGY, "rank 0 does not fit"));
  unsetenv("TRIBUTARY_RANK");
}

TEST_CASE("without a worker, or the device that is asked for, attaching says what is not there") {
  COptions o;
  o.options.attach_timeout_ms = 1;
  std::vector<std::string> notes;
  o.options.note = [](const char* text, void* context) {
    static_cast<std::vector<std::string>*>(context)->push_back(text);
  };
  o.options.note_context = &notes;
  CHECK(failed_with(attach(o.options), TRIBUTARY_UNAVAILABLE, "/nowhere/w.sock"));
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0], "waiting for the worker daemon"));

  o.options.socket = nullptr;
  setenv("TRIBUTARY_SOCKET", "/nowhere/else.sock", 1);
  CHECK(failed_with(attach(o.options), TRIBUTARY_UNAVAILABLE, "/nowhere/else.sock"));
  unsetenv("TRIBUTARY_SOCKET");

  o.options.device = 9999;
  CHECK(attach(o.options) == TRIBUTARY_NO_DEVICE);
  CHECK_FALSE(std::string(tributary_last_error()).empty());
}

}  // namespace tributary::c_misuse_test
