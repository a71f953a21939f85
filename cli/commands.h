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
// Below `bench`: the ranks that the lab starts on its hosts, the comparison there, the bound on staleness, slow nodes.
void add_bench_ranks(CLI::App& bench, int& exit_status);
void add_bench_staleness(CLI::App& bench, int& exit_status);
void add_bench_elastic(CLI::App& bench, int& exit_status);
void add_bench_stragglers(CLI::App& bench, int& exit_status);
void add_bench_compare(CLI::App& bench, int& exit_status);
void add_bench_checkpoint(CLI::App& bench, int& exit_status);
void add_bench_soak(CLI::App& bench, int& exit_status);
void add_bench_gpu_costs(CLI::App& bench, int& exit_status);

}  // namespace tributary::cli
