// Keys that job files had in earlier releases. In a store's record, a checkpoint's manifest or an older peer's message
// a retired key is accepted if its value means the present behaviour. In a job file it is refused, with the cure.
#pragma once

#include <string_view>

namespace tributary {

struct RetiredKey {
  std::string_view section, key;
  std::string_view meant_nothing;  // the JSON value without effect; empty: any value is
  std::string_view instead;        // the replacement, in words
};

inline constexpr RetiredKey kRetiredKeys[] = {
    {"sync", "backup_workers", "0", "set sync.deadline_ms: then late nodes send what they managed"},
    {"ssp", "lr_by_staleness", "false", "lower ssp.staleness or optimizer.lr"},
    {"ssp", "delay_compensation", "0.0", "lower ssp.staleness or optimizer.lr"},
    {"recovery", "redo_log", "", "set recovery.redo_mb, or 0 for \"none\""},
    {"recovery", "log_mb", "", "remove it: nodes keep what they pushed (recovery.redo_mb)"},
    {"recovery", "when_full", "", "remove it: nobody waits; raise recovery.redo_mb to keep more rounds"},
};

// Returns the retired key; null: it never was a key.
constexpr const RetiredKey* retired_key(std::string_view section, std::string_view key) {
  for (const RetiredKey& retired : kRetiredKeys) {
    if (retired.section == section && retired.key == key) return &retired;
  }
  return nullptr;
}

}  // namespace tributary
