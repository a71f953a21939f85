#include "server/diagnosis.h"

#include "common/base/quantity.h"
#include "common/doctor/check_list.h"
#include "common/doctor/daemon_checks.h"
#include "common/doctor/disk_rate.h"
#include "common/doctor/machine_checks.h"
#include "common/doctor/settings.h"
#include "common/system/host_identity.h"

namespace tributary {
namespace {

// Compares the rate of the store's disk with the snapshot writer's budget.
std::vector<Check> disk_checks(const ServerConfig& config) {
  CheckList out;
  out.section("server " + std::to_string(config.index));
  const auto rate = disk_rate(config.store_path);
  const double budget = config.store_io_mb_per_s * 1e6;
  if (!rate) {
    out.problem("disk", rate.error().message, "choose another [store] path, or see to its disk");
  } else if (*rate < budget) {
    out.note("disk",
             bandwidth_in_words(*rate) + " of durable writes in " + config.store_path + "; [store] io_mb_per_s is " +
                 std::to_string(config.store_io_mb_per_s),
             "snapshots take as long as the disk does: use a faster one, or make snapshots rarer");
  } else {
    out.ok("disk", bandwidth_in_words(*rate) + " of durable writes in " + config.store_path);
  }
  return out.take();
}

}  // namespace

Diagnosed diagnose(const ServerConfig& config, const Diagnose& order, const std::atomic<bool>& stopping) {
  const MachineFacts machine = gather_machine_facts();
  const Around around{stopping, machine.interfaces, host_identity(config.host), order.paths, order.cluster, true};
  Diagnosed found{.diagnosis = order.diagnosis, .settings = settings_of(config), .checks = judge(machine), .rates = {}};
  append(found.checks, checks_of(config, around));
  const bool go_on = !stopping.load(std::memory_order_acquire);
  if (go_on && order.measure && !config.store_path.empty()) append(found.checks, disk_checks(config));
  return found;
}

}  // namespace tributary
