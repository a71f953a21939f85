// What measurements on labs have in common: labs that are brought up, runs that are repeated in turn, and a report.
#pragma once

#include <functional>
#include <memory>
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

// What all runs of a lab report (tools/lab/lab_run.h), of one round, medians over the repetitions: wire_bytes [{host,
// sent, received}], processes [{name, seconds (of processors)}], cpu_seconds, machine_busy, drops, retransmits.
Json usage(const std::vector<Json>& runs);

// {name, rate_mbit, hosts[], links[], goodput_bytes_per_s, goodput_from}
Json described(const lab::Lab& lab);

// The lab, which ends with what is given. verify: measures its links, unless that was done.
Result<std::unique_ptr<lab::Lab>> bring_up(const lab::LabConfig& config, bool verify, const MeasurementRun& run);

// {labs [what `measure` gives of each]}. All files are read before the first is measured.
Result<Json> in_each_lab(const std::vector<std::string>& files,
                         const std::function<Result<Json>(const lab::LabConfig&)>& measure);

// FOLDER/results.json, and FOLDER/report.html as bench/draw.py draws `kind`.
Status write_report(const std::string& kind, const std::string& folder, const Json& result, const MeasurementRun& run);

}  // namespace tributary::bench
