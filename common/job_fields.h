// The one list of a job's keys: section, key, member. The TOML reader, the JSON reader and the JSON writer all walk it,
// so that none of them can forget a key.
#pragma once

#include <type_traits>

#include "common/config.h"
#include "common/config_check.h"

namespace tributary {

// Calls visit(section, key, member) for every key. Config: const JobConfig to write, JobConfig to read; a reader gets
// the chosen optimizer's defaults in place before the other optimizer keys are visited.
template <class Config, class Visitor>
void visit_job_fields(Config& c, Visitor&& visit) {
  visit("job", "name", c.name);
  visit("job", "mode", c.mode);
  visit("job", "chunk_bytes", c.chunk_bytes);

  visit("encoding", "push", c.push);
  visit("encoding", "pull", c.pull);

  visit("allreduce", "algorithm", c.allreduce.algorithm);

  visit("optimizer", "name", c.optimizer.name);
  if constexpr (!std::is_const_v<Config>) c.optimizer = default_optimizer(c.optimizer.name);
  visit("optimizer", "lr", c.optimizer.lr);
  visit("optimizer", "weight_decay", c.optimizer.weight_decay);
  visit("optimizer", "momentum", c.optimizer.momentum);
  visit("optimizer", "dampening", c.optimizer.dampening);
  visit("optimizer", "nesterov", c.optimizer.nesterov);
  visit("optimizer", "beta1", c.optimizer.beta1);
  visit("optimizer", "beta2", c.optimizer.beta2);
  visit("optimizer", "eps", c.optimizer.eps);
  visit("optimizer", "lr_decay", c.optimizer.lr_decay);
  visit("optimizer", "initial_accumulator", c.optimizer.initial_accumulator);

  visit("schedule", "name", c.schedule.name);
  visit("schedule", "warmup_rounds", c.schedule.warmup_rounds);
  visit("schedule", "total_rounds", c.schedule.total_rounds);
  visit("schedule", "min_lr_ratio", c.schedule.min_lr_ratio);
  visit("schedule", "step_rounds", c.schedule.step_rounds);
  visit("schedule", "step_gamma", c.schedule.step_gamma);

  visit("snapshot", "every_s", c.snapshot.every_s);
  visit("snapshot", "every_rounds", c.snapshot.every_rounds);

  visit("recovery", "redo_log", c.recovery.redo_log);
  visit("recovery", "redo_mb", c.recovery.redo_mb);

  visit("train", "dataset", c.train.dataset);
  visit("train", "data_dir", c.train.data_dir);
  visit("train", "hidden", c.train.hidden);
  visit("train", "epochs", c.train.epochs);
  visit("train", "global_batch", c.train.global_batch);
  visit("train", "accumulation", c.train.accumulation);
  visit("train", "seed", c.train.seed);
  visit("train", "max_rounds", c.train.max_rounds);
  visit("train", "eval_every_epochs", c.train.eval_every_epochs);
}

}  // namespace tributary
