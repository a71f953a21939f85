#include "common/config/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/system/host_port.h"

namespace tributary {

std::string join(std::span<const std::string_view> words, std::string_view last_separator) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out += i + 1 == words.size() ? last_separator : std::string_view(", ");
    out += words[i];
  }
  return out;
}

std::string must_be_one_of(std::span<const std::string_view> words) {
  return "must be one of " + join(words, " or ");
}

std::string default_coordinator() {
  return std::string(kIpcScheme) + run_folder() + "/coordinator";
}

std::string lanes_bind(const ServerConfig& config) {
  if (!config.bind.empty()) return config.bind;
  const std::string coordinator = config.coordinators.empty() ? std::string() : config.coordinators.front();
  if (!ipc_path(coordinator)) return "tcp://127.0.0.1:*";
  return coordinator + "-server-" + std::to_string(config.index);
}

std::uint16_t default_lanes(unsigned hardware_threads) {
  return static_cast<std::uint16_t>(std::clamp(hardware_threads / 4, 1u, 8u));
}

std::optional<double> parse_loss_scale(const std::string& text) {
  double scale = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), scale);
  int exponent = 0;
  const bool power = error == std::errc{} && end == text.data() + text.size() && std::isfinite(scale) &&
                     std::frexp(scale, &exponent) == 0.5;
  if (!power || scale < kMinLossScale || scale > kMaxLossScale) return std::nullopt;
  return scale;
}

double initial_loss_scale(const GateConfig& config) {
  if (config.loss_scale == "none") return 1.0;
  return has_dynamic_scale(config) ? config.init_scale : parse_loss_scale(config.loss_scale).value_or(1.0);
}

}  // namespace tributary
