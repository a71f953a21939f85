// tributary doctor: is this machine fit for a run, and what does it have?
#include <cstdio>
#include <memory>

#include "tools/cli/commands.h"
#include "tools/cli/doctor_checks.h"

namespace tributary::cli {

namespace {

constexpr const char* kFooter = R"(
Looks at this machine as a run would use it, and changes nothing. Each line is ok, a note (it works, but you may want to know), or a problem;
below notes and problems stands what to do.

Example:
  tributary doctor --json

Exit status: 0 no problem, 1 there is one.)";

}  // namespace

void add_doctor(CliCommand app, int& exit_status) {
  auto json = std::make_shared<bool>(false);
  CliCommand doctor = app.add_subcommand("doctor", "check this machine: processor, memory, network, GPUs, NCCL");
  doctor->footer(kFooter);
  doctor->add_flag("--json", *json, "print one JSON object");
  doctor->callback([json, &exit_status] {
    const MachineFacts facts = gather_facts();
    const std::vector<Check> checks = judge(facts);
    if (*json) {
      // Environment variables may hold any bytes.
      const auto replace = nlohmann::ordered_json::error_handler_t::replace;
      std::printf("%s\n", doctor_json(facts, checks).dump(-1, ' ', false, replace).c_str());
    } else {
      std::fputs(doctor_text(checks).c_str(), stdout);
    }
    exit_status = has_problem(checks) ? 1 : 0;
  });
}

}  // namespace tributary::cli
