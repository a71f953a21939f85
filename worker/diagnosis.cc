#include "worker/diagnosis.h"

#include <utility>

#include "common/doctor/check_list.h"
#include "common/doctor/daemon_checks.h"
#include "common/doctor/gpu_checks.h"
#include "common/doctor/machine_checks.h"
#include "common/doctor/settings.h"
#include "common/system/host_identity.h"
#include "worker/link_rates.h"

namespace tributary {

Diagnosed diagnose(const DiagnosedWorker& worker, const Diagnose& order, const std::atomic<bool>& stopping) {
  const WorkerConfig& config = worker.config;
  const MachineFacts machine = gather_machine_facts();
  const Around around{stopping, machine.interfaces, host_identity(config.host), order.paths, order.cluster, true};
  Diagnosed found{
      .diagnosis = order.diagnosis, .settings = settings_of(worker.configured), .checks = judge(machine), .rates = {}};
  append(found.checks, judge(gather_gpu_facts(GpuLook::kAtWork), machine.interfaces));
  append(found.checks, checks_of(config, around));
  if (order.measure) {
    MeasuredLinks links = measure_links(order, {worker.own, around.host, machine.interfaces}, stopping);
    found.rates = std::move(links.rates);
    append(found.checks, links.checks);
  }
  return found;
}

}  // namespace tributary
