#include "worker/examination.h"

#include <utility>

#include "common/base/host_identity.h"
#include "common/doctor/daemon_checks.h"
#include "common/doctor/gpu_checks.h"
#include "common/doctor/machine_checks.h"
#include "worker/link_rates.h"

namespace tributary {

Examined examine(const ExaminedWorker& worker, const Examine& order, const std::atomic<bool>& stopping) {
  const WorkerConfig& config = worker.config;
  const MachineFacts machine = gather_machine_facts();
  const Around around{stopping,    machine.interfaces, config.host.empty() ? host_identity() : config.host,
                      order.paths, order.cluster,      true};
  Examined found{.exam = order.exam, .settings = worker.settings, .checks = judge(machine), .rates = {}};
  const auto add = [&](const std::vector<Check>& more) {
    found.checks.insert(found.checks.end(), more.begin(), more.end());
  };
  add(judge(gather_gpu_facts(GpuLook::kAtWork), machine.interfaces));
  add(checks_of(config, around));
  if (order.measure) {
    MeasuredLinks links = measure_links(order, {worker.own, around.host, machine.interfaces}, stopping);
    found.rates = std::move(links.rates);
    add(links.checks);
  }
  return found;
}

}  // namespace tributary
