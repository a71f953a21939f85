#include "server/orders/diagnosis_http.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/doctor/check_list.h"
#include "server/orders/order_body.h"
#include "server/orders/order_http.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDiagnosisOrder[] = "/doctor/order";
constexpr char kDiagnosisPrefix[] = "/doctor/";

Json daemon_json(const DiagnosedDaemon& daemon) {
  Json settings = Json::array(), rates = Json::array();
  const Diagnosed said = daemon.said.value_or(Diagnosed{});
  for (const Setting& setting : said.settings) settings.push_back({{"key", setting.key}, {"value", setting.value}});
  for (const LinkRate& rate : said.rates) {
    rates.push_back({{"server", rate.shard.value},
                     {"local", rate.local},
                     {"bytes_per_s", rate.bytes_per_s},
                     {"round_trip_s", rate.round_trip_s}});
  }
  return {{"name", daemon.name},
          {"kind", daemon.server ? "server" : "worker"},
          {"silent_because", daemon.silent_because},
          {"settings", std::move(settings)},
          {"checks", checks_json(said.checks)},
          {"rates", std::move(rates)}};
}

AdminHttp::Answer order_diagnosis(Coordinator& coordinator, const std::string& body) {
  Result<DiagnosisOrder> order = diagnosis_order_of(body);
  if (!order) return refusal(order.error());
  return accepted(coordinator.diagnose(std::move(*order)));
}

// rest: "ID" or "ID/NUMBER".
AdminHttp::Answer diagnosis_status(const Coordinator& coordinator, const std::string& rest) {
  const std::size_t slash = rest.find('/');
  const std::string digits = rest.substr(0, slash);
  const std::optional<std::uint64_t> id = number_in(digits);
  const bool fits = id && *id <= std::numeric_limits<std::uint32_t>::max();
  const auto diagnosis = fits ? coordinator.diagnosis(static_cast<std::uint32_t>(*id)) : std::nullopt;
  if (!diagnosis) return gone("diagnosis", digits);
  if (slash != std::string::npos) {
    const std::optional<std::uint64_t> number = number_in(rest.substr(slash + 1));
    if (!number || *number >= diagnosis->daemons.size())
      return refusal(
          {ErrorCode::kNotFound, "the diagnosis is of " + std::to_string(diagnosis->daemons.size()) + " daemons"});
    return {200, text_of(daemon_json(diagnosis->daemons[*number]))};
  }
  Json daemons = Json::array();
  for (const DiagnosedDaemon& daemon : diagnosis->daemons) {
    daemons.push_back({{"name", daemon.name},
                       {"asked", daemon.asked},
                       {"said", daemon.said.has_value()},
                       {"silent_because", daemon.silent_because}});
  }
  return {200, text_of({{"id", diagnosis->id},
                        {"measure", diagnosis->measure},
                        {"over", diagnosis->over},
                        {"servers", diagnosis->servers},
                        {"daemons", std::move(daemons)}})};
}

}  // namespace

std::optional<AdminHttp::Answer> answer_diagnosis(Coordinator& coordinator, const std::string& path,
                                                  const std::string* body) {
  if (!path.starts_with(kDiagnosisPrefix)) return std::nullopt;
  if (body != nullptr)
    return path == kDiagnosisOrder ? std::optional(order_diagnosis(coordinator, *body)) : std::nullopt;
  return diagnosis_status(coordinator, path.substr(sizeof kDiagnosisPrefix - 1));
}

}  // namespace tributary
