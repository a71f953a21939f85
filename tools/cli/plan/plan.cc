// tributary plan: which layout is fastest on these links, and what binds it.
#include "tools/cli/plan/plan.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "common/base/quantity.h"
#include "common/math/encoding.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/daemons.h"
#include "tools/cli/plan/plan_measure.h"

namespace tributary::cli {
namespace {

constexpr const char* kPlanFooter = R"(
Examples:
  tributary plan --nodes 4 --servers 4 --bandwidth 250Mbit/s --payload 16MB --compute-ms 200
  tributary plan --nodes 8 --ranks-per-node 8 --servers 4 --bandwidth 25Gbit/s --parameters 1e9 --push int8 --pull int8-delta
  tributary plan --measure --base-dir runs/fashion-mnist

Layouts: flat ring and hierarchical ring are mode allreduce; servers can stand on machines of
their own, beside the workers, or on both with the optimal shares. M is the payload, B the payload rate of a host's link.
Efficiency is compute over step. common/math/cost_model.h has the formulas.

Exit status: 0 done, 1 failed, 2 wrong usage.)";

struct PlanArguments {
  Scenario scenario{.nodes = 4, .servers = 0, .payload_bytes = 0.0};
  std::string bandwidth, server_bandwidth, inside_bandwidth, payload, transfer;
  std::vector<std::string> node_bandwidths;  // "2=100Mbit/s"
  std::string push, pull;
  double parameters = 0.0, latency_us = 50.0, inside_latency_us = 1.0, compute_ms = 0.0, update_ms = 0.0;
  std::string base_dir, job;
  std::vector<std::string> admin;
  bool measure = false, json = false;
};

Error about(const char* option, const Error& error) {
  return {error.code, std::string(option) + ": " + error.message};
}

Status set_bandwidths(const PlanArguments& a, Scenario& s) {
  if (!a.bandwidth.empty()) {
    const auto rate = parse_bandwidth(a.bandwidth);
    if (!rate) return tl::unexpected<Error>(about("--bandwidth", rate.error()));
    s.network.bandwidth = *rate;
    s.node_bandwidths.clear();
  } else if (!a.measure) {
    return fail(ErrorCode::kInvalidArgument,
                "how fast are the hosts' links? give --bandwidth, as 25Gbit/s, or --measure running daemons");
  }
  if (!a.inside_bandwidth.empty()) {
    const auto rate = parse_bandwidth(a.inside_bandwidth);
    if (!rate) return tl::unexpected<Error>(about("--inside-bandwidth", rate.error()));
    s.inside.bandwidth = *rate;
  }
  for (const std::string& entry : a.node_bandwidths) {
    const std::size_t equals = entry.find('=');
    char* end = nullptr;
    const unsigned long node = std::strtoul(entry.c_str(), &end, 10);
    const auto rate = parse_bandwidth(equals == std::string::npos ? entry : entry.substr(equals + 1));
    if (equals == 0 || equals == std::string::npos || end != entry.c_str() + equals || node >= s.nodes || !rate) {
      return fail(ErrorCode::kInvalidArgument, "--node-bandwidth '" + entry +
                                                   "': write it as NODE=RATE, as 2=100Mbit/s, with "
                                                   "a node from 0 to " +
                                                   std::to_string(s.nodes - 1));
    }
    if (s.node_bandwidths.empty()) s.node_bandwidths.assign(s.nodes, s.network.bandwidth);
    s.node_bandwidths[node] = *rate;
  }
  if (!a.server_bandwidth.empty()) {
    const auto rate = parse_bandwidth(a.server_bandwidth);
    if (!rate) return tl::unexpected<Error>(about("--server-bandwidth", rate.error()));
    s.server_bandwidths.assign(s.servers, *rate);
  }
  return {};
}

Status set_payload(const PlanArguments& a, Scenario& s) {
  if (!a.payload.empty()) {
    const auto bytes = parse_bytes(a.payload);
    if (!bytes) return tl::unexpected<Error>(about("--payload", bytes.error()));
    s.payload_bytes = *bytes;
  } else if (a.parameters != 0.0) {
    if (!std::isfinite(a.parameters) || a.parameters < 1.0) {
      return fail(ErrorCode::kInvalidArgument, "--parameters must be at least 1; give the model's parameters, as 1e9");
    }
    s.payload_bytes = 4.0 * a.parameters;
  } else if (!a.measure) {
    return fail(ErrorCode::kInvalidArgument,
                "how large is the model? give --payload, as 64MB, or --parameters, as 16e6");
  }
  if (!a.transfer.empty()) {
    const auto bytes = parse_bytes(a.transfer);
    if (!bytes) return tl::unexpected<Error>(about("--transfer", bytes.error()));
    s.transfer_bytes = *bytes;
  }
  if (!a.push.empty() || !a.pull.empty()) {
    s.wire = wire_ratio(*parse_encoding(a.push.empty() ? "fp32" : a.push),
                        *parse_encoding(a.pull.empty() ? "fp32" : a.pull));
  }
  return {};
}

Result<std::optional<Measured>> measured(const PlanArguments& a) {
  if (!a.measure) return std::nullopt;
  std::vector<std::string> addresses = a.admin;
  if (!a.base_dir.empty()) {
    const auto found = admin_addresses(a.base_dir);
    if (!found) return tl::unexpected<Error>(found.error());
    addresses.insert(addresses.end(), found->begin(), found->end());
  }
  if (addresses.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--measure: whom to ask? give --base-dir or --admin");
  }
  auto result = measure(addresses, a.job);
  if (!result) return tl::unexpected<Error>(result.error());
  return std::optional(std::move(*result));
}

Status run_plan(PlanArguments& a) {
  const auto links = measured(a);
  if (!links) return tl::unexpected<Error>(links.error());
  Scenario& s = a.scenario;
  s.network.latency_s = 1e-6 * a.latency_us;
  s.inside.latency_s = 1e-6 * a.inside_latency_us;
  s.compute_s = 1e-3 * a.compute_ms;
  s.update_s = 1e-3 * a.update_ms;
  if (*links) use_measured(**links, s);
  if (const Status set = set_bandwidths(a, s); !set) return set;
  if (const Status set = set_payload(a, s); !set) return set;
  const auto plan = make_plan(s);
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (a.json) {
    auto json = plan_json(*plan);
    if (*links) json["measured"] = measured_json(**links);
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s%s", *links ? measured_text(**links).c_str() : "", plan_text(*plan).c_str());
  }
  return {};
}

std::function<std::string(const std::string&)> encoding_check(bool (*usable)(EncodingSpec), std::string names) {
  return [usable, names = std::move(names)](const std::string& name) {
    const auto spec = parse_encoding(name);
    return spec && usable(*spec) ? std::string() : "'" + name + "' is not one of " + names;
  };
}

void add_machine_options(CliCommand plan, PlanArguments& a) {
  Scenario& s = a.scenario;
  const CliCheck hosts = in_range(1u, 65536u);
  plan->add_option("--nodes", s.nodes, "hosts with a worker")->check(hosts)->capture_default_str();
  plan->add_option("--ranks-per-node", s.ranks_per_node, "trainers (GPUs) on each")
      ->check(hosts)
      ->capture_default_str();
  plan->add_option("--servers", s.servers, "hosts with servers only")
      ->check(in_range(0u, 65536u))
      ->capture_default_str();
  plan->add_option("--bandwidth", a.bandwidth, "of a host's link, each way, as 250Mbit/s or 12.5GB/s")
      ->type_name("RATE");
  plan->add_option("--server-bandwidth", a.server_bandwidth, "of a server host's link (default: as --bandwidth)")
      ->type_name("RATE");
  plan->add_option("--node-bandwidth", a.node_bandwidths, "of one node's link; may be repeated")
      ->type_name("NODE=RATE");
  plan->add_option("--latency-us", a.latency_us, "of a message between hosts")
      ->check(not_negative())
      ->capture_default_str();
  plan->add_option("--inside-bandwidth", a.inside_bandwidth, "between ranks of a node (default 10GB/s)")
      ->type_name("RATE");
  plan->add_option("--inside-latency-us", a.inside_latency_us, "of a message in a node")
      ->check(not_negative())
      ->capture_default_str();
  plan->add_option("--goodput", s.goodput, "payload bytes in a byte of the bandwidth (0.956: TCP at MTU 1500)")
      ->check(in_range(0.01, 1.0));
}

void add_job_options(CliCommand plan, PlanArguments& a) {
  Scenario& s = a.scenario;
  const CliOption payload =
      plan->add_option("--payload", a.payload, "bytes to exchange (fp32), as 16MB")->type_name("BYTES");
  plan->add_option("--parameters", a.parameters, "instead: parameters of 4 bytes, as 1e9")->excludes(payload);
  plan->add_option("--push", a.push, "encoding of gradients: " + push_encodings())
      ->check(accepted_by(encoding_check(usable_for_push, push_encodings())));
  plan->add_option("--pull", a.pull, "encoding of parameters: " + pull_encodings())
      ->check(accepted_by(encoding_check(usable_for_pull, pull_encodings())));
  plan->add_option("--compute-ms", a.compute_ms, "forward and backward pass of a step")
      ->check(not_negative())
      ->capture_default_str();
  plan->add_option("--local-steps", s.local_steps,
                   "servers: steps that a rank takes by itself between two exchanges (mode local_sgd)")
      ->check(in_range(1u, 1000000u))
      ->capture_default_str();
  plan->add_option("--overlap", s.overlap, "part of the compute time behind which the exchange may hide, 0 to 1")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  plan->add_option("--update-ms", a.update_ms, "the optimizer's step on a worker, in all-reduce mode")
      ->check(not_negative())
      ->capture_default_str();
  plan->add_option("--buckets", s.buckets, "all-reduce: collectives of an exchange")
      ->check(in_range(1u, 1000000u))
      ->capture_default_str();
  plan->add_option("--transfer", a.transfer,
                   "bytes of a transfer between worker and server (default: as the coordinator chooses)")
      ->type_name("BYTES");
}

}  // namespace

void add_plan(CliCommand app, int& exit_status) {
  auto arguments = std::make_shared<PlanArguments>();
  PlanArguments& a = *arguments;
  CliCommand plan = app.add_subcommand("plan", kPlanHelp);
  plan->description(
      "Predicts exchange, step time and efficiency of every layout, names the bottleneck, and recommends.");
  plan->footer(kPlanFooter);
  add_machine_options(plan, a);
  add_job_options(plan, a);
  plan->add_flag("--json", a.json, "print one JSON object");

  const CliOption measure = plan->add_flag("--measure", a.measure, "take links, model and hosts from running daemons");
  plan->add_option("--base-dir", a.base_dir, "folder of a running `tributary up`")->type_name("FOLDER")->needs(measure);
  plan->add_option("--admin", a.admin, "admin address of a daemon; may be repeated")
      ->type_name("HOST:PORT")
      ->needs(measure);
  plan->add_option("--job", a.job, "if several run")->needs(measure);

  plan->callback([arguments, &exit_status] {
    const Status done = run_plan(*arguments);
    if (done) return;
    std::fprintf(stderr, "tributary plan: %s\n", done.error().message.c_str());
    exit_status = done.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace tributary::cli
