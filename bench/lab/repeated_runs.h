// The common part of measurements on labs: labs that are brought up, and runs that are repeated in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measurement.h"
#include "common/base/result.h"
#include "tools/lab/lab.h"
#include "tools/lab/lab_config.h"

namespace tributary::bench {

using Json = nlohmann::ordered_json;

double number(const Json& json, const char* key);
std::vector<double> column(const std::vector<Json>& runs, const std::function<double(const Json&)>& field);
// {median, min, max, all[]}
Json spread(const std::vector<double>& values);

// Resources that all runs of a lab report (tools/lab/lab_run.h), of one round, medians over the repetitions: wire_bytes
// [{host, sent, received}], processes [{name, seconds (of processors)}], cpu_seconds, machine_busy, drops, retransmits.
Json usage(const std::vector<Json>& runs);

// {name, rate_mbit, hosts[], links[], goodput_bytes_per_s, goodput_from}
Json described(const lab::Lab& lab);

// Arguments of every measurement on labs.
struct LabArguments {
  std::vector<std::string> files;
  std::string base_dir = "runs";
  std::uint32_t repetitions = 0;  // 0: as the lab's file says
  bool no_verify = false;

  std::uint32_t repetitions_in(const lab::LabConfig& config) const {
    return repetitions == 0 ? config.compare.repetitions : repetitions;
  }
  std::string folder_of(const lab::LabConfig& config) const { return base_dir + "/" + config.name; }
};
void add_lab_arguments(CliCommand command, LabArguments& arguments);

// Returns {labs [the result of `measure` for each]}. All files are read before the first lab is brought up. A
// lab's links are measured unless that was done, and the lab ends with its measurement.
MeasurementResult measure_labs(const LabArguments& arguments, MeasurementRun& run,
                               const std::function<Result<Json>(const lab::Lab&)>& measure);

}  // namespace tributary::bench
