// The one list of a job's keys: section, key, member. The TOML reader, the JSON reader and the JSON writer all walk it,
// so that none of them can forget a key.
#pragma once

#include <string_view>
#include <type_traits>

#include "common/config/config.h"
#include "common/config/config_check.h"

namespace tributary {

// The keys that [optimizer] and [local] share.
template <class Optimizer, class Visitor>
void visit_optimizer_fields(std::string_view section, Optimizer& o, Visitor&& visit) {
  visit(section, "lr", o.lr);
  visit(section, "weight_decay", o.weight_decay);
  visit(section, "momentum", o.momentum);
  visit(section, "dampening", o.dampening);
  visit(section, "nesterov", o.nesterov);
  visit(section, "beta1", o.beta1);
  visit(section, "beta2", o.beta2);
  visit(section, "eps", o.eps);
  visit(section, "lr_decay", o.lr_decay);
  visit(section, "initial_accumulator", o.initial_accumulator);
}

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

  visit("sync", "deadline_ms", c.sync.deadline_ms);

  visit("ssp", "staleness", c.ssp.staleness);

  visit("optimizer", "name", c.optimizer.name);
  if constexpr (!std::is_const_v<Config>) c.optimizer = default_outer_optimizer(c.mode, c.optimizer.name);
  visit_optimizer_fields("optimizer", c.optimizer, visit);

  visit("local", "steps", c.local.steps);
  visit("local", "keep_state", c.local.keep_state);
  visit("local", "optimizer", c.local.optimizer.name);
  if constexpr (!std::is_const_v<Config>) c.local.optimizer = default_optimizer(c.local.optimizer.name);
  visit_optimizer_fields("local", c.local.optimizer, visit);

  visit("schedule", "name", c.schedule.kind);
  visit("schedule", "warmup_rounds", c.schedule.warmup_rounds);
  visit("schedule", "total_rounds", c.schedule.total_rounds);
  visit("schedule", "min_lr_ratio", c.schedule.min_lr_ratio);
  visit("schedule", "step_rounds", c.schedule.step_rounds);
  visit("schedule", "step_gamma", c.schedule.step_gamma);

  visit("gate", "clip_norm", c.gate.clip_norm);
  visit("gate", "loss_scale", c.gate.loss_scale);
  visit("gate", "init_scale", c.gate.init_scale);
  visit("gate", "growth_factor", c.gate.growth_factor);
  visit("gate", "backoff_factor", c.gate.backoff_factor);
  visit("gate", "growth_interval", c.gate.growth_interval);

  visit("snapshot", "every_s", c.snapshot.every_s);
  visit("snapshot", "every_rounds", c.snapshot.every_rounds);

  visit("recovery", "redo_mb", c.recovery.redo_mb);

  visit("membership", "on_worker_loss", c.membership.on_worker_loss);
  visit("membership", "min_nodes", c.membership.min_nodes);
  visit("membership", "rejoin_ms", c.membership.rejoin_ms);

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
