#include "session/c_attach.h"

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/utf8.h"
#include "common/config/config_toml.h"
#include "common/system/private_folder.h"
#include "common/wire/compute_kinds.h"
#include "session/c_boundary.h"

namespace tributary::c {
namespace {

// Up to the last member that the first release had and that has no value of its own when absent.
#define TRIBUTARY_UP_TO(type, member) (offsetof(type, member) + sizeof(type::member))
constexpr std::size_t kLeastTensor = TRIBUTARY_UP_TO(tributary_tensor, dimensions);
constexpr std::size_t kLeastOptions = TRIBUTARY_UP_TO(tributary_options, node_rank);
#undef TRIBUTARY_UP_TO

TensorSpec spec_of(const tributary_tensor& tensor) {
  TensorSpec spec{.name = tensor.name, .shape = {}, .group = tensor.group};
  if (tensor.dimensions > 0) spec.shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
  if (tensor.holder_count > 0) spec.holders.assign(tensor.holders, tensor.holders + tensor.holder_count);
  return spec;
}

Result<std::vector<TensorSpec>> tensors_of(const tributary_options& options) {
  if (options.tensor_count == 0 || options.tensors == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "tributary_options declares no tensors; set tensors and tensor_count");
  }
  if (options.tensor_count > kMaxTensors) {
    return fail(ErrorCode::kInvalidArgument, "tensor_count is " + std::to_string(options.tensor_count) +
                                                 "; the limit is " + std::to_string(kMaxTensors));
  }
  const std::size_t stride = options.tensors->size;
  const auto* bytes = reinterpret_cast<const char*>(options.tensors);
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < options.tensor_count; ++i) {
    const std::string what = "tensors[" + std::to_string(i) + "]";
    const auto* given = reinterpret_cast<const tributary_tensor*>(bytes + i * stride);
    tributary_tensor tensor{};
    if (Status read = read_struct(given, kLeastTensor, what.c_str(), tensor); !read) {
      return tl::unexpected(read.error());
    }
    if (tensor.size != stride || stride % alignof(tributary_tensor) != 0) {
      return fail(ErrorCode::kInvalidArgument, what + " says that its size is " + std::to_string(tensor.size) +
                                                   " and tensors[0] " + std::to_string(stride) +
                                                   "; set it to sizeof(tributary_tensor) in all of them");
    }
    if (tensor.name == nullptr || strnlen(tensor.name, kMaxNameBytes + 1) > kMaxNameBytes) {
      return fail(ErrorCode::kInvalidArgument, what + " has no name, or one of more than " +
                                                   std::to_string(kMaxNameBytes) + " bytes; give it one of its own");
    }
    if (tensor.dimensions > kMaxShapeDims) {
      return fail(ErrorCode::kInvalidArgument, what + " has " + std::to_string(tensor.dimensions) +
                                                   " dimensions; the limit is " + std::to_string(kMaxShapeDims));
    }
    if (tensor.dimensions > 0 && tensor.shape == nullptr) {
      return fail(ErrorCode::kInvalidArgument, what + " has " + std::to_string(tensor.dimensions) +
                                                   " dimensions, and its shape is NULL; give an array of so many");
    }
    if (tensor.holder_count > 0 && (tensor.holders == nullptr || tensor.holder_count > kMaxModelRanks)) {
      return fail(ErrorCode::kInvalidArgument, what + " has holder_count " + std::to_string(tensor.holder_count) +
                                                   "; give an array of so many model ranks, at most " +
                                                   std::to_string(kMaxModelRanks));
    }
    specs.push_back(spec_of(tensor));
  }
  // Tensors that a worker would refuse are refused before the attach looks for a worker.
  if (auto layout = Layout::unowned(specs); !layout) return tl::unexpected(layout.error());
  return specs;
}

Result<JobConfig> job_of(const char* text) {
  if (text == nullptr) return fail(ErrorCode::kInvalidArgument, "tributary_options.job is NULL; give the job's text");
  const std::string_view job(text, strnlen(text, kMaxConfigBytes + 1));
  if (job.size() > kMaxConfigBytes) {
    return fail(ErrorCode::kConfig, "the job's text has more than " + std::to_string(kMaxConfigBytes) +
                                        " bytes; give TOML or JSON of a job, not a path or data");
  }
  return parse_job_config(job, "job");
}

std::string socket_of(const char* given) {
  if (given) return given;
  const char* named = std::getenv("TRIBUTARY_SOCKET");
  return named && *named ? named : default_worker_socket();
}

Result<SessionOptions> options_of(const tributary_options& given) {
  SessionOptions options;
  options.socket = socket_of(given.socket);
  auto job = job_of(given.job);
  if (!job) return tl::unexpected(job.error());
  options.job = std::move(*job);
  if (given.from_environment) {
    const auto topology = Topology::from_environment();
    if (!topology) return tl::unexpected(topology.error());
    options.topology = *topology;
  } else {
    options.topology = {given.rank, given.world_size, given.local_rank, given.local_world_size, given.node_rank};
    if (Status sound = options.topology.validate(); !sound) return tl::unexpected(sound.error());
  }
  const auto attach_timeout =
      given.attach_timeout_ms > 0
          ? Result<std::chrono::milliseconds>(std::chrono::milliseconds(given.attach_timeout_ms))
          : attach_timeout_of_environment();
  if (!attach_timeout) return tl::unexpected(attach_timeout.error());
  options.attach_timeout = *attach_timeout;
  if (given.stops) {
    options.stops = [stops = given.stops] { return *stops != 0; };
  }
  options.gradients_move = given.gradients_move != 0;
  options.model_rank = given.model_rank;
  if (given.computes_with) {
    if (strnlen(given.computes_with, kMaxComputeKindBytes + 1) > kMaxComputeKindBytes) {
      return fail(ErrorCode::kInvalidArgument, "tributary_options.computes_with has more than " +
                                                   std::to_string(kMaxComputeKindBytes) +
                                                   " bytes; give a shorter name");
    }
    options.computes_with = given.computes_with;
    if (!is_utf8(options.computes_with)) {
      return fail(ErrorCode::kInvalidArgument, "tributary_options.computes_with is no UTF-8 text; give it as such");
    }
  }
  if (given.note) {
    options.note = [note = given.note, context = given.note_context](const std::string& text) {
      note(text.c_str(), context);
    };
  }
  if (given.recovery) options.recovery = given.recovery->kept;
  if (given.device < -1) {
    return fail(ErrorCode::kInvalidArgument, "tributary_options.device is " + std::to_string(given.device) +
                                                 "; give the number of a CUDA device, or -1 for host memory");
  }
  if (given.device >= 0) {
    auto opener = make_cuda_trainer_device(given.device);
    if (!opener) return fail(ErrorCode::kDevice, std::move(opener.error().message));
    options.device = std::move(*opener);
  }
  return options;
}

}  // namespace

Result<AttachArguments> arguments_of(const tributary_options* options) {
  tributary_options given{};
  given.device = -1;
  if (Status read = read_struct(options, kLeastOptions, "tributary_options", given); !read)
    return tl::unexpected(read.error());
  auto tensors = tensors_of(given);
  if (!tensors) return tl::unexpected(tensors.error());
  auto session_options = options_of(given);
  if (!session_options) return tl::unexpected(session_options.error());
  if (Status known = check_groups(session_options->job, *tensors); !known) return tl::unexpected(known.error());
  return AttachArguments{std::move(*session_options), std::move(*tensors)};
}

}  // namespace tributary::c
