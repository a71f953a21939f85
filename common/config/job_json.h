// A job's configuration as canonical JSON, which trainers, workers, servers and the store exchange and compare.
//
// Canonical: keys sorted, no white space, every value explicit, doubles in the shortest form that reads back to the
// same bits. So equal configurations give equal bytes, whatever their TOML looked like.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/config/config.h"

namespace tributary {

inline constexpr std::size_t kMaxJobJson = 1u << 20;  // bytes; bounds what a peer can make us parse

// Everything but train.data_dir, which belongs to the machine (nodes may have the data in different places).
std::string to_canonical_json(const JobConfig& config);

// Never trusts its input. kMalformed for bytes that are no JSON object or over kMaxJobJson, kConfig for unknown keys,
// wrong types and impossible values. An absent key takes its default, so that records stay readable after a release
// adds a key. train.data_dir keeps its default: the caller knows where its data is.
Result<JobConfig> job_from_json(std::string_view json);

// Returns whether members of one job, or a job and its stored state, may differ in a key: the length of the training
// and the intervals of evaluation and snapshots change none of the rounds already done. So a stopped job may be resumed
// with more epochs.
//
//   train.epochs, train.max_rounds, train.eval_every_epochs, snapshot.*, recovery.*
//   (and train.data_dir, which is not in the JSON at all)
bool is_ignorable_key(std::string_view dotted_key);

// A sentence naming the first key (in sorted order) that differs and is not ignorable, with both values; empty if the
// two are the same training. Either may be a peer's bytes; one that is no job configuration is named as such.
std::string describe_config_difference(std::string_view ours_json, std::string_view theirs_json);
std::string describe_config_difference(const JobConfig& ours, const JobConfig& theirs);

// The same for any key: ranks of one node are started with one job file.
std::string describe_any_config_difference(const JobConfig& ours, const JobConfig& theirs);

inline bool same_training(std::string_view ours_json, std::string_view theirs_json) {
  return describe_config_difference(ours_json, theirs_json).empty();
}

}  // namespace tributary
