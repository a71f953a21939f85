// All keys of a job: section, key, member, in one order. The TOML reader, the JSON reader and the JSON writer all walk
// them, so that none of them can forget a key. A section's keys stand next to its members (common/config/config.h).
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "common/config/config.h"
#include "common/config/config_check.h"

namespace tributary {

// The section of a group's keys: "groups[0]" for the first [[groups]].
inline std::string group_section(std::size_t index) {
  return "groups[" + std::to_string(index) + "]";
}

// Calls visit(section, key, member) for every key. Config: const JobConfig to write, JobConfig to read. For a reader,
// the chosen optimizer's defaults are in place before the other optimizer keys are visited. The reader returns the
// number of groups (visit.tables), whose keys begin with the optimizer's values.
template <class Config, class Visitor>
void visit_job_fields(Config& c, Visitor&& visit) {
  constexpr bool kReads = !std::is_const_v<Config>;
  const auto section = [&visit](std::string_view name) {
    return [&visit, name](std::string_view key, auto& member) { visit(name, key, member); };
  };
  const auto keys_of = [&section](std::string_view name, auto& part) {
    std::remove_cvref_t<decltype(part)>::fields(part, section(name));
  };
  visit("job", "name", c.name);
  visit("job", "mode", c.mode);
  visit("job", "chunk_bytes", c.chunk_bytes);
  visit("encoding", "push", c.push);
  visit("encoding", "pull", c.pull);
  keys_of("allreduce", c.allreduce);
  keys_of("sync", c.sync);
  keys_of("ssp", c.ssp);
  visit("optimizer", "name", c.optimizer.name);
  if constexpr (kReads) c.optimizer = default_outer_optimizer(c.mode, c.optimizer.name);
  visit_options(c.optimizer.name, c.optimizer, section("optimizer"));
  if constexpr (kReads) c.groups.assign(visit.tables("groups"), c.optimizer);
  for (std::size_t i = 0; i < c.groups.size(); ++i) {
    const std::string section_name = group_section(i);
    visit_options(c.optimizer.name, c.groups[i], section(section_name));
  }
  visit("local", "steps", c.local.steps);
  visit("local", "keep_state", c.local.keep_state);
  visit("local", "optimizer", c.local.optimizer.name);
  if constexpr (kReads) c.local.optimizer = default_optimizer(c.local.optimizer.name);
  visit_options(c.local.optimizer.name, c.local.optimizer, section("local"));
  keys_of("schedule", c.schedule);
  keys_of("gate", c.gate);
  keys_of("snapshot", c.snapshot);
  keys_of("checkpoint", c.checkpoint);
  keys_of("recovery", c.recovery);
  keys_of("membership", c.membership);
  keys_of("train", c.train);
}

}  // namespace tributary
