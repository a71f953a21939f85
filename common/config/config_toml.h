// Configuration files in TOML, or the same tables in JSON -> the structs of config.h, checked.
//
// A fault of a file is reported as kConfig with "FILE:LINE: section.key = value: what would be right"; of several
// faults the one on the lowest line. Unknown sections and keys are refused (with the nearest known name), never
// ignored: a misspelt key that silently keeps its default would train something else. Pure, but for reading the file.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary {

inline constexpr std::size_t kMaxConfigBytes = 1u << 20;  // a configuration file larger than this is some other file

// Errors: kNotFound for a missing file (names the path), kIo if it cannot be read, kConfig for its contents.
Result<ServerConfig> load_server_config(const std::string& path);
Result<WorkerConfig> load_worker_config(const std::string& path);
// Loads the configuration of either daemon: it has [server] or [worker]. kConfig also: neither, or both.
Result<std::variant<ServerConfig, WorkerConfig>> load_daemon_config(const std::string& path);
// overrides: "section.key=value" each, as given to --set; they win over the file and over earlier ones. The value is
// TOML (0.1, true, [256, 128], "text"); a bare word is taken as a string.
// Errors in them begin with "override 'optimizer.lr=-1': ".
Result<JobConfig> load_job_config(const std::string& path, std::span<const std::string> overrides = {});

// Text of a configuration file. Errors: kNotFound, kIo, or kConfig if it is larger than any would be.
Result<std::string> read_config_file(const std::string& path);

// The same from text; source_name stands for the file in messages.
Result<ServerConfig> parse_server_config(std::string_view text, std::string_view source_name);
Result<WorkerConfig> parse_worker_config(std::string_view text, std::string_view source_name);
Result<JobConfig> parse_job_config(std::string_view text, std::string_view source_name,
                                   std::span<const std::string> overrides = {});

}  // namespace tributary
