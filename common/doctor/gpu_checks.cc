#include "common/doctor/gpu_checks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/quantity.h"
#include "common/doctor/check_list.h"

namespace tributary {
namespace {

class Judge {
 public:
  Judge(const GpuFacts& facts, const std::vector<NetworkInterface>& interfaces) : f_(facts), interfaces_(interfaces) {}

  std::vector<Check> run() {
    gpus();
    libraries();
    nccl_settings();
    return out_.take();
  }

 private:
  void gpus() {
    out_.section("GPUs");
    const CudaSystem& cuda = f_.cuda;
    if (!cuda.built) {
      // A driver shows that the GPUs were to be used.
      if (cuda.driver_module.empty()) {
        out_.ok("CUDA", "not in this build, and no NVIDIA driver here: trainers compute on the CPU");
      } else {
        out_.problem("CUDA", "not in this build, but NVIDIA's driver " + cuda.driver_module + " is there",
                     cuda.no_devices);
      }
    } else {
      out_.ok("CUDA", "runtime " + cuda.runtime + " in this build");
    }
    for (const auto& [name, value] : f_.cuda_environment) out_.ok(name, value.empty() ? "set, but empty" : value);
    if (!cuda.built) return;
    if (cuda.devices.empty()) {
      // Without a driver it is a machine without GPUs, for servers for example; with one something is wrong.
      if (cuda.driver_module.empty() && cuda.driver.empty()) {
        out_.ok("devices", "none, no NVIDIA driver: trainers compute on the CPU");
      } else {
        out_.problem("devices", "none can be used", cuda.no_devices);
      }
      return;
    }
    out_.ok("driver", (cuda.driver_module.empty() ? std::string("release unknown") : cuda.driver_module) +
                          ", serves CUDA up to " + cuda.driver);
    for (const CudaDevice& device : cuda.devices) one_device(device);
    if (cuda.mps.empty()) {
      out_.note("MPS", "does not run: a worker and its trainers take turns on each device",
                "start nvidia-cuda-mps-control -d before them, as the same user; it matters most with several ranks a "
                "device, and where collectives go on while trainers compute");
    } else {
      out_.ok("MPS", "in " + cuda.mps + ": processes share a device at the same time");
    }
    if (f_.no_peer_access.empty()) {
      if (cuda.devices.size() > 1) out_.ok("peer access", "between all devices");
    } else {
      std::string pairs;
      for (const auto& [from, to] : f_.no_peer_access) {
        pairs += (pairs.empty() ? "" : ", ") + std::to_string(from) + " to " + std::to_string(to);
      }
      out_.note("peer access", "not from device " + pairs, "NCCL goes through host memory there, which is slower");
    }
  }

  void one_device(const CudaDevice& device) {
    const std::string name = "cuda:" + std::to_string(device.index);
    std::string found =
        device.name + ", " + memory_in_words(device.memory) + ", compute capability " + std::to_string(device.major) +
        "." + std::to_string(device.minor) + ", PCI " + device.pci_bus_id +
        (device.numa_node < 0 ? "" : ", NUMA node " + std::to_string(device.numa_node)) + ", " + device.uuid;
    if (!device.unusable.empty()) {
      out_.problem(name, std::move(found), device.unusable);
    } else if (device.exclusive) {
      out_.note(name, std::move(found) + ", exclusive to one process",
                "the worker and several trainers share a device: nvidia-smi -c DEFAULT");
    } else {
      out_.ok(name, std::move(found));
    }
    const auto index = static_cast<std::size_t>(device.index);
    if (!device.unusable.empty() || index >= f_.ipc_problems.size()) return;
    if (f_.ipc_problems[index].empty()) {
      out_.ok(name + " IPC", "its memory can be lent to other processes");
    } else {
      out_.note(
          name + " IPC", f_.ipc_problems[index],
          "gradients then go through host memory; in containers, run worker and trainers in one, or share the IPC and "
          "PID namespaces");
    }
  }

  void libraries() {
    out_.section("libraries for GPUs");
    const bool used = f_.cuda.built && !f_.cuda.devices.empty();
    const CheckLevel missing = used && f_.cuda.devices.size() > 1 ? CheckLevel::kProblem : CheckLevel::kNote;
    const std::string without = "needed to sum over several GPUs, of a node or of an all-reduce job";
    if (!f_.nccl.left_out.empty()) {
      out_.add("NCCL", missing, "not in this build: " + without, f_.nccl.left_out);
    } else if (f_.nccl.problem.empty()) {
      out_.ok("NCCL", f_.nccl.version + " in " + f_.nccl.file);
    } else if (!used) {
      out_.ok("NCCL", "not there, and not needed without GPUs");
    } else {
      out_.add("NCCL", missing, "not there: " + without, f_.nccl.problem);
    }
  }

  void nccl_settings() {
    out_.section("NCCL's settings");
    for (const std::string& file : f_.nccl_files) out_.note("file", file, "NCCL reads its settings, too");
    for (const auto& [name, value] : f_.nccl_environment) {
      if (name == "NCCL_SOCKET_IFNAME" && !names_an_interface(value)) {
        out_.problem(name, value, "no interface of this machine with an address matches; NCCL will not start with it");
      } else if ((name == "NCCL_P2P_DISABLE" || name == "NCCL_SHM_DISABLE") && !value.empty() && value != "0") {
        out_.note(name, value,
                  "switches off what makes sums inside a node fast; unset it unless it works around a fault");
      } else {
        out_.ok(name, value.empty() ? "set, but empty" : value);
      }
    }
    if (f_.nccl_environment.empty()) out_.ok("environment", "no variable NCCL_* is set");
    if (f_.cuda.devices.empty() ||
        std::ranges::any_of(f_.nccl_environment, [](const auto& variable) { return variable.first == "NCCL_DEBUG"; })) {
      return;
    }
    out_.ok("NCCL_DEBUG", "not set; NCCL_DEBUG=INFO shows what NCCL chose, should something be slow");
  }

  // NCCL's words: a list of prefixes; "=" before it: of whole names; "^": all but these.
  bool names_an_interface(std::string_view value) const {
    const bool inverted = value.starts_with('^');
    if (inverted) value.remove_prefix(1);
    const bool whole = value.starts_with('=');
    if (whole) value.remove_prefix(1);
    const auto listed = [&](const std::string& name) {
      std::string_view rest = value;
      while (!rest.empty()) {
        const auto comma = rest.find(',');
        const std::string_view item = rest.substr(0, comma);
        if (!item.empty() && (whole ? name == item : std::string_view(name).starts_with(item))) return true;
        rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
      }
      return false;
    };
    return value.empty() || std::ranges::any_of(interfaces_, [&](const NetworkInterface& interface) {
             return listed(interface.name) != inverted;
           });
  }

  const GpuFacts& f_;
  const std::vector<NetworkInterface>& interfaces_;
  CheckList out_;
};

}  // namespace

std::vector<Check> judge(const GpuFacts& facts, const std::vector<NetworkInterface>& interfaces) {
  return Judge(facts, interfaces).run();
}

nlohmann::ordered_json gpus_json(const GpuFacts& facts) {
  using Json = nlohmann::ordered_json;
  auto devices = Json::array();
  for (const CudaDevice& device : facts.cuda.devices) {
    devices.push_back({{"index", device.index},
                       {"name", device.name},
                       {"uuid", device.uuid},
                       {"pci_bus_id", device.pci_bus_id},
                       {"numa_node", device.numa_node},
                       {"memory_bytes", device.memory},
                       {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
                       {"multiprocessors", device.multiprocessors},
                       {"unusable", device.unusable}});
  }
  auto environment = Json::object();
  for (const auto& [name, value] : facts.nccl_environment) environment[name] = value;
  return {{"cuda",
           {{"built", facts.cuda.built},
            {"runtime", facts.cuda.runtime},
            {"driver", facts.cuda.driver},
            {"driver_module", facts.cuda.driver_module},
            {"mps", facts.cuda.mps},
            {"no_devices", facts.cuda.no_devices},
            {"devices", std::move(devices)}}},
          {"nccl",
           {{"file", facts.nccl.file},
            {"version", facts.nccl.version},
            {"problem", facts.nccl.problem},
            {"left_out", facts.nccl.left_out}}},
          {"nccl_environment", std::move(environment)}};
}

}  // namespace tributary
