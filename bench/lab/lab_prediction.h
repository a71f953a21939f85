// The cost model's prediction of a run in a lab.
#pragma once

#include "common/config/config.h"
#include "common/math/cost_model.h"
#include "tools/lab/lab_config.h"
#include "tools/lab/link_check.h"

namespace tributary::bench {

// The scenario of a job on a lab's hosts. goodput: payload in a byte of a link's rate.
Scenario lab_scenario(const lab::LabConfig& lab, const JobConfig& job, double model_bytes, double goodput);

// Gloo's ring over the hosts with a worker: one rank each, all in one piece.
Scenario gloo_scenario(const lab::LabConfig& lab, double model_bytes, double goodput);

// Returns the payload share of the lab's links, from their measurements.
double payload_share(const lab::LabConfig& lab, const std::vector<lab::LinkCheck>& links);

}  // namespace tributary::bench
