#include "common/config/config_toml.h"

#include <cerrno>
#include <fstream>
#include <system_error>
#include <vector>

#include "common/config/config_check.h"
#include "common/config/daemon_fields.h"
#include "common/config/job_fields.h"
#include "common/config/toml_reader.h"

namespace tributary {
namespace {

// REQUIRES: every key was read into `config`. further: faults that depend on the keys present, not on their values.
template <class Config>
Result<Config> checked(TomlReader& reader, Config config, const std::vector<Fault>& further = {}) {
  reader.check_unknown();
  for (const Fault& fault : further) reader.complain(fault);
  for (const Fault& fault : faults_of(config)) reader.complain(fault);
  if (Status status = reader.finish(); !status) return tl::unexpected(status.error());
  return config;
}

Result<ServerConfig> server_config(TomlReader&& read) {
  ServerConfig c;
  visit_server_fields(c, read);
  return checked(read, std::move(c));
}

Result<WorkerConfig> worker_config(TomlReader&& read) {
  WorkerConfig c;
  visit_worker_fields(c, read);
  return checked(read, std::move(c));
}

}  // namespace

Result<std::string> read_config_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    const std::string reason = std::generic_category().message(error);
    if (error == ENOENT) {
      return fail(ErrorCode::kNotFound,
                  "no configuration file at " + path + "; check the path (configs/ has examples)");
    }
    return fail(ErrorCode::kIo, "cannot open the configuration file " + path + ": " + reason);
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    return fail(ErrorCode::kIo, "cannot read the configuration file " + path + "; is it a file?");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxConfigBytes) {
    return fail(ErrorCode::kConfig,
                path + " has more than " + std::to_string(kMaxConfigBytes) + " bytes; is it a configuration file?");
  }
  return text;
}

Result<ServerConfig> parse_server_config(std::string_view text, std::string_view source_name) {
  return TomlReader::parse(text, source_name).and_then(server_config);
}

Result<WorkerConfig> parse_worker_config(std::string_view text, std::string_view source_name) {
  return TomlReader::parse(text, source_name).and_then(worker_config);
}

Result<JobConfig> parse_job_config(std::string_view text, std::string_view source_name,
                                   std::span<const std::string> overrides) {
  Result<TomlReader> parsed = TomlReader::parse(text, source_name);
  if (!parsed) return tl::unexpected(parsed.error());
  TomlReader& read = *parsed;
  for (const std::string& assignment : overrides) {
    if (Status status = read.override_with(assignment); !status) return tl::unexpected(status.error());
  }
  JobConfig c;
  visit_job_fields(c, read);
  // A key that the chosen optimizer or schedule has no use for was set in the belief that it does something.
  std::vector<Fault> useless;
  for (const std::string& key : read.given()) {
    if (std::optional<Fault> fault = inapplicable(c, key)) useless.push_back(std::move(*fault));
  }
  return checked(read, std::move(c), useless);
}

Result<std::variant<ServerConfig, WorkerConfig>> load_daemon_config(const std::string& path) {
  using Either = std::variant<ServerConfig, WorkerConfig>;
  const Result<std::string> text = read_config_file(path);
  if (!text) return tl::unexpected(text.error());
  Result<TomlReader> parsed = TomlReader::parse(*text, path);
  if (!parsed) return tl::unexpected(parsed.error());
  const bool server = parsed->has_section("server"), worker = parsed->has_section("worker");
  if (server == worker) {
    return fail(ErrorCode::kConfig, path + " has " +
                                        (server ? "both [server] and [worker]" : "neither [server] nor [worker]") +
                                        "; a daemon's configuration has one of them (configs/ has examples)");
  }
  const auto either = [](auto config) { return Either(std::move(config)); };
  if (server) return server_config(std::move(*parsed)).map(either);
  return worker_config(std::move(*parsed)).map(either);
}

Result<ServerConfig> load_server_config(const std::string& path) {
  return read_config_file(path).and_then([&](const std::string& text) { return parse_server_config(text, path); });
}

Result<WorkerConfig> load_worker_config(const std::string& path) {
  return read_config_file(path).and_then([&](const std::string& text) { return parse_worker_config(text, path); });
}

Result<JobConfig> load_job_config(const std::string& path, std::span<const std::string> overrides) {
  return read_config_file(path).and_then(
      [&](const std::string& text) { return parse_job_config(text, path, overrides); });
}

}  // namespace tributary
