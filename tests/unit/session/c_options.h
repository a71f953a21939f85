// Options of a tributary_attach() that is right in all things, for tests of the C interface to spoil one.
#pragma once

#include <cstdint>
#include <string>

#include "session/tributary.h"
#include "tests/unit/expect.h"

namespace tributary::testing {

struct COptions {
  explicit COptions(std::string socket_path = "/nowhere/w.sock") : socket(std::move(socket_path)) {
    options.size = sizeof options;
    options.socket = socket.c_str();
    options.job = "[job]\nname = \"a-job\"\n";
    options.tensors = tensors;
    options.tensor_count = 3;
    options.world_size = options.local_world_size = 1;
    options.attach_timeout_ms = 20'000;
    options.device = -1;
  }
  COptions(const COptions&) = delete;
  COptions& operator=(const COptions&) = delete;

  std::string socket;
  std::uint64_t weight_shape[2] = {30, 50}, bias_shape[1] = {50}, head_shape[1] = {3000};
  tributary_tensor tensors[3] = {{sizeof(tributary_tensor), "weight", weight_shape, 2, 0},
                                 {sizeof(tributary_tensor), "bias", bias_shape, 1, 0},
                                 {sizeof(tributary_tensor), "head", head_shape, 1, 0}};
  tributary_options options{};
};

// Returns whether the call failed as it should, with a message that has `part`.
inline bool failed_with(tributary_status got, tributary_status wanted, const std::string& part) {
  return got == wanted && contains(std::string(tributary_last_error()), part);
}

}  // namespace tributary::testing
