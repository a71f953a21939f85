#include "common/base/quantity.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>

#include "common/base/printed.h"

namespace tributary {
namespace {

using Unit = std::pair<std::string_view, double>;

constexpr Unit kBytes[] = {
    {"", 1},      {"b", 1},        {"kb", 1e3},        {"mb", 1e6},           {"gb", 1e9},
    {"tb", 1e12}, {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0}};
constexpr Unit kRates[] = {{"bit", 0.125}, {"kbit", 125.0}, {"mbit", 1.25e5}, {"gbit", 1.25e8},
                           {"b", 1.0},     {"kb", 1e3},     {"mb", 1e6},      {"gb", 1e9}};

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Parses a positive number and the unit behind it, in the first unit of that name. Returns 0 if there is none.
double amount(std::string_view text, std::span<const Unit> units, std::string_view suffix) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0.0) return 0.0;
  std::string unit = lower(std::string_view(end, text.data() + text.size()));
  unit.erase(0, std::min(unit.size(), unit.find_first_not_of(' ')));
  if (!suffix.empty() && unit.ends_with(suffix)) unit.resize(unit.size() - suffix.size());
  for (const auto& [name, factor] : units) {
    if (name == unit) return value * factor;
  }
  return 0.0;
}

struct Step {
  double from;
  const char* unit;
};

std::string scaled(double value, std::span<const Step> steps) {
  for (const Step& step : steps) {
    if (value < step.from * 0.99999) continue;
    const double scaled_value = value / step.from;
    const int decimals = scaled_value < 10.0 ? 3 : scaled_value < 100.0 ? 2 : 1;
    return printed("%.*f %s", decimals, scaled_value, step.unit);
  }
  return std::string("0 ") + steps.back().unit;
}

}  // namespace

Result<double> parse_bytes(std::string_view text) {
  const double value = amount(text, kBytes, "");
  if (value > 0.0) return value;
  return fail(ErrorCode::kInvalidArgument,
              "'" + std::string(text) + "' is no amount of bytes; write it as 16MB, 1.5GiB or 500000");
}

Result<double> parse_bandwidth(std::string_view text) {
  const double value = amount(text, kRates, "/s");
  if (value > 0.0) return value;
  return fail(ErrorCode::kInvalidArgument, "'" + std::string(text) +
                                               "' is no bandwidth; write it with its unit, as 250Mbit/s, 25Gbit/s or "
                                               "12.5GB/s");
}

std::string bytes_in_words(double bytes) {
  constexpr Step kSteps[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "KB"}, {1.0, "B"}};
  return scaled(bytes, kSteps);
}

std::string bandwidth_in_words(double bytes_per_s) {
  constexpr Step kSteps[] = {{1e9, "GB/s"}, {1e6, "MB/s"}, {1e3, "KB/s"}, {1.0, "B/s"}};
  return scaled(bytes_per_s, kSteps);
}

std::string seconds_in_words(double seconds) {
  constexpr Step kSteps[] = {{1.0, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  return scaled(seconds, kSteps);
}

std::string memory_in_words(std::uint64_t bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  const auto value = static_cast<double>(bytes);
  return value >= kGiB ? printed("%.1f GiB", value / kGiB) : printed("%.1f MiB", value / kMiB);
}

}  // namespace tributary
