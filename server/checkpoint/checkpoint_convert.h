// Checkpoints to safetensors files and back: for evaluation, serving, and other trainers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary {

struct ConversionResult {
  std::string path;  // of what was written
  std::uint64_t tensors = 0, parameters = 0, bytes = 0;
};

// Writes the parameters by tensor name, in fp32; with `state`, also the optimizer's arrays, as NAME.exp_avg and so on.
// The file appears whole or not at all. Its metadata has the job, the round and the order of the tensors.
Result<ConversionResult> export_safetensors(const std::string& checkpoint, const std::string& file, bool state);

struct ImportOptions {
  JobConfig job;
  std::string directory;           // where the checkpoint is to be
  std::string created;             // now, for the manifest
  std::vector<std::string> order;  // the tensors' names as the trainers declare them; empty: import_order()
  // The size of chunks follows from these if job.chunk_bytes is 0.
  std::uint16_t servers = 2;
  std::uint32_t nodes = 2;
};
// Writes a checkpoint of round 0: these parameters and fresh optimizer state. Half-precision values become fp32.
Result<ConversionResult> import_safetensors(const std::string& file, const ImportOptions& options);

}  // namespace tributary
