#include "common/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tributary {

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
  return config.loss_scale == "dynamic" ? config.init_scale : parse_loss_scale(config.loss_scale).value_or(1.0);
}

}  // namespace tributary
