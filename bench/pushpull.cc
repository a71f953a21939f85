#include "bench/pushpull.h"

#include <memory>
#include <utility>

#include "bench/pushpull_setup.h"

namespace tributary::bench {

using Json = nlohmann::ordered_json;

Result<Json> run_pushpull(const PushPullOptions& options) {
  auto setup = PushPullSetup::start(options);
  if (!setup) return tl::unexpected(setup.error());
  PushPullBenchmark& measured = (*setup)->benchmark();
  if (auto ok = measured.wait_paused(); !ok) return tl::unexpected(ok.error());
  // Shared memory is compared with loopback, in turns, as everything else is with the ceiling.
  std::unique_ptr<PushPullSetup> other;
  if (options.transport == Transport::kShm && !options.device) {
    PushPullOptions over_tcp = options;
    over_tcp.transport = Transport::kTcp;
    auto started = PushPullSetup::start(over_tcp);
    if (!started) return tl::unexpected(started.error());
    other = std::move(*started);
    if (auto ok = other->benchmark().wait_paused(); !ok) return tl::unexpected(ok.error());
  }
  const auto baseline = [&]() -> Status { return other ? other->benchmark().slice() : measured.ceiling(); };
  if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  for (std::uint32_t i = 0; i < options.slices; ++i) {
    if (auto ok = measured.slice(); !ok) return tl::unexpected(ok.error());
    if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  }
  auto result = measured.finish();
  if (!result) return result;
  if (other) {
    const auto compared = other->benchmark().finish();
    if (!compared) return compared;
    const double tcp = compared->at("gb_per_s_each_way").get<double>();
    (*result)["tcp_gb_per_s_each_way"] = tcp;
    (*result)["ratio_to_tcp"] = tcp > 0.0 ? measured.rate() / tcp : 0.0;
    (*result)["tcp_cpu_seconds_per_gb"] = compared->at("cpu_seconds_per_gb");
    (*result)["tcp_slices_gb_per_s"] = compared->at("slices_gb_per_s");
    if (auto ok = other->stop(); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = (*setup)->stop(); !ok) return tl::unexpected(ok.error());
  return result;
}

}  // namespace tributary::bench
