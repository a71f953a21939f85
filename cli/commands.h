// The subcommands of `tributary`. Each adds itself to the command line and, if it is the one called, sets the exit
// status (common/exit_codes.h): 0 done, 1 failed (the reason is on standard error), 2 wrong usage, 75 a job was
// stopped.
#pragma once

#include <CLI/CLI.hpp>

namespace tributary::cli {

void add_up(CLI::App& app, int& exit_status);
void add_status(CLI::App& app, int& exit_status);
void add_bench(CLI::App& app, int& exit_status);
void add_chaos(CLI::App& app, int& exit_status);
void add_plan(CLI::App& app, int& exit_status);
void add_doctor(CLI::App& app, int& exit_status);
void add_lab(CLI::App& app, int& exit_status);
void add_checkpoint(CLI::App& app, int& exit_status);
void add_job(CLI::App& app, int& exit_status);
void add_checkpoint_conversions(CLI::App& checkpoint, int& exit_status);  // below `checkpoint`

}  // namespace tributary::cli
