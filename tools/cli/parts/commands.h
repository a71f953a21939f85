// The subcommands of `tributary`, in two programs: tributary, and tributary-bench, which tributary starts to measure
// and emulate. Each adds itself to the command line and, if called, sets the exit status (common/base/exit_codes.h):
// 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 75 a job was stopped.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/command_line.h"
#include "common/config/choice.h"

namespace tributary::cli {

void add_up(CliCommand app, int& exit_status);
// trainer: the arguments after "--".
void add_run(CliCommand app, const std::vector<std::string>& trainer, int& exit_status);
void add_status(CliCommand app, int& exit_status);
void add_top(CliCommand app, int& exit_status);
void add_chaos(CliCommand app, int& exit_status);
void add_doctor(CliCommand app, int& exit_status);
void add_checkpoint(CliCommand app, int& exit_status);
void add_logs(CliCommand app, int& exit_status);
void add_trace(CliCommand app, int& exit_status);
void add_keys(CliCommand app, int& exit_status);
void add_job(CliCommand app, int& exit_status);
void add_completion(CliCommand app, int& exit_status);
void add_checkpoint_conversions(CliCommand checkpoint, int& exit_status);  // below `checkpoint`

// In tributary-bench:
inline constexpr const char* kBenchHelp = "measure, with a baseline from the same run";
inline constexpr const char* kLabHelp = "several hosts with limited links, emulated on this machine";
inline constexpr const char* kPlanHelp = "which layout is fastest on these links, and what binds it";
void add_bench(CliCommand app, int& exit_status);
void add_plan(CliCommand app, int& exit_status);
void add_lab(CliCommand app, int& exit_status);

// Options of several commands. --secure, or --secure=plain.
void add_secure(CliCommand command, std::optional<PayloadSecurity>& secure);

// Adds the subcommands of tributary-bench to the command line of tributary.
void list_measuring(CommandLine& app);

// Parses the command line and runs the subcommand, which sets exit_status. Returns the process' exit status.
int run_command_line(CommandLine& app, int argc, char** argv, int& exit_status);

}  // namespace tributary::cli
