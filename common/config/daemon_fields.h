// The keys of daemons' configurations, each with its member. The reader (config_toml.cc) and the list of settings
// (common/doctor/settings.h) walk them. key(section, name, member).
#pragma once

#include "common/config/config.h"

namespace tributary {

// Visits the keys that every daemon has.
void visit_common_fields(auto& c, auto&& key) {
  key("limits", "heartbeat_ms", c.heartbeat_ms);
  key("limits", "peer_timeout_ms", c.peer_timeout_ms);
  key("limits", "stop_timeout_s", c.stop_timeout_s);
  key("security", "keys", c.security.keys);
  key("security", "coordinator_key", c.security.coordinator_keys);
  key("security", "authorized", c.security.authorized);
  key("security", "admin_token", c.security.admin_token);
  key("security", "admin_hosts", c.security.admin_hosts);
  key("security", "insecure", c.security.insecure);
  key("security", "network", c.security.network);
  key("log", "level", c.log.level);
  key("log", "file", c.log.file);
  key("log", "format", c.log.format);
}

void visit_server_fields(auto& c, auto&& key) {
  key("server", "index", c.index);
  key("server", "servers", c.servers);
  key("server", "coordinator", c.coordinators);
  key("server", "bind", c.bind);
  key("server", "advertise", c.advertise);
  key("server", "lanes", c.lanes);
  key("server", "admin", c.admin);
  key("server", "host", c.host);
  key("server", "bandwidth", c.bandwidth);
  key("store", "path", c.store_path);
  key("store", "io_mb_per_s", c.store_io_mb_per_s);
  key("store", "checkpoint_roots", c.checkpoint_roots);
  key("limits", "max_memory", c.max_memory);
  key("security", "payload", c.security.payload);
  visit_common_fields(c, key);
}

void visit_worker_fields(auto& c, auto&& key) {
  key("worker", "coordinator", c.coordinators);
  key("worker", "name", c.name);
  key("worker", "socket", c.socket);
  key("worker", "admin", c.admin);
  key("worker", "host", c.host);
  key("worker", "bandwidth", c.bandwidth);
  key("worker", "local_transport", c.local_transport);
  key("worker", "serve_coordinator", c.serve_coordinator);
  key("worker", "address", c.address);
  key("worker", "lanes", c.lanes);
  key("worker", "node_reduction", c.node_reduction);
  key("device", "collective_timeout_ms", c.collective_timeout_ms);
  key("device", "nccl", c.nccl);
  key("store", "path", c.store_path);
  key("limits", "window_bytes", c.window_bytes);
  key("limits", "max_shared_memory", c.max_shared_memory);
  visit_common_fields(c, key);
}

}  // namespace tributary
