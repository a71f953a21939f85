#include "common/config/config_toml.h"

#include <cerrno>
#include <fstream>
#include <system_error>
#include <vector>

#include "common/config/config_check.h"
#include "common/config/job_fields.h"
#include "common/config/toml_reader.h"

namespace tributary {
namespace {

// REQUIRES: every key was read into `config`. further: faults that only the keys given tell, not the values.
template <class Config>
Result<Config> checked(TomlReader& reader, Config config, const std::vector<Fault>& further = {}) {
  reader.check_unknown();
  for (const Fault& fault : further) reader.complain(fault);
  for (const Fault& fault : faults_of(config)) reader.complain(fault);
  if (Status status = reader.finish(); !status) return tl::unexpected(status.error());
  return config;
}

// The keys that every daemon has.
template <class Config>
void read_daemon(TomlReader& read, Config& c) {
  read("limits", "heartbeat_ms", c.heartbeat_ms);
  read("limits", "peer_timeout_ms", c.peer_timeout_ms);
  read("limits", "stop_timeout_s", c.stop_timeout_s);
  read("security", "keys", c.security.keys);
  read("security", "coordinator_key", c.security.coordinator_key);
  read("security", "authorized", c.security.authorized);
  read("security", "admin_token", c.security.admin_token);
  read("security", "admin_hosts", c.security.admin_hosts);
  read("security", "insecure", c.security.insecure);
  read("security", "network", c.security.network);
  read("log", "level", c.log.level);
  read("log", "file", c.log.file);
  read("log", "format", c.log.format);
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
  Result<TomlReader> parsed = TomlReader::parse(text, source_name);
  if (!parsed) return tl::unexpected(parsed.error());
  TomlReader& read = *parsed;
  ServerConfig c;
  read("server", "index", c.index);
  read("server", "servers", c.servers);
  read("server", "coordinator", c.coordinator);
  read("server", "bind", c.bind);
  read("server", "advertise", c.advertise);
  read("server", "lanes", c.lanes);
  read("server", "admin", c.admin);
  read("server", "host", c.host);
  read("server", "bandwidth", c.bandwidth);
  read("store", "path", c.store_path);
  read("store", "io_mb_per_s", c.store_io_mb_per_s);
  read("store", "checkpoint_roots", c.checkpoint_roots);
  read("security", "payload", c.security.payload);
  read_daemon(read, c);
  return checked(read, std::move(c));
}

Result<WorkerConfig> parse_worker_config(std::string_view text, std::string_view source_name) {
  Result<TomlReader> parsed = TomlReader::parse(text, source_name);
  if (!parsed) return tl::unexpected(parsed.error());
  TomlReader& read = *parsed;
  WorkerConfig c;
  read("worker", "coordinator", c.coordinator);
  read("worker", "name", c.name);
  read("worker", "socket", c.socket);
  read("worker", "admin", c.admin);
  read("worker", "host", c.host);
  read("worker", "bandwidth", c.bandwidth);
  read("worker", "local_transport", c.local_transport);
  read("worker", "serve_coordinator", c.serve_coordinator);
  read("worker", "address", c.address);
  read("worker", "lanes", c.lanes);
  read("worker", "node_reduction", c.node_reduction);
  read("device", "collective_timeout_ms", c.collective_timeout_ms);
  read("device", "nccl", c.nccl);
  read("store", "path", c.store_path);
  read("limits", "window_bytes", c.window_bytes);
  read("limits", "max_shared_memory", c.max_shared_memory);
  read_daemon(read, c);
  return checked(read, std::move(c));
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
