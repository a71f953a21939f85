#include "server/orders/exam_http.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/doctor/check_list.h"
#include "server/orders/order_body.h"
#include "server/orders/order_http.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kExamOrder[] = "/doctor/order";
constexpr char kExamPrefix[] = "/doctor/";

Json daemon_json(const ExaminedDaemon& daemon) {
  Json settings = Json::array(), rates = Json::array();
  const Examined said = daemon.said.value_or(Examined{});
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

AdminHttp::Answer order_exam(Coordinator& coordinator, const std::string& body) {
  Result<ExamOrder> order = exam_order_of(body);
  if (!order) return refusal(order.error());
  return accepted(coordinator.examine(std::move(*order)));
}

// rest: "ID" or "ID/NUMBER".
AdminHttp::Answer exam_status(const Coordinator& coordinator, const std::string& rest) {
  const std::size_t slash = rest.find('/');
  const std::string digits = rest.substr(0, slash);
  const std::optional<std::uint64_t> id = number_in(digits);
  const bool fits = id && *id <= std::numeric_limits<std::uint32_t>::max();
  const auto exam = fits ? coordinator.exam(static_cast<std::uint32_t>(*id)) : std::nullopt;
  if (!exam) {
    return refusal({ErrorCode::kNotFound, "there is no examination " + digits +
                                              " (any more): another one was ordered, or the coordinator has been "
                                              "restarted since"});
  }
  if (slash != std::string::npos) {
    const std::optional<std::uint64_t> number = number_in(rest.substr(slash + 1));
    if (!number || *number >= exam->daemons.size())
      return refusal(
          {ErrorCode::kNotFound, "the examination is of " + std::to_string(exam->daemons.size()) + " daemons"});
    return {200, text_of(daemon_json(exam->daemons[*number]))};
  }
  Json daemons = Json::array();
  for (const ExaminedDaemon& daemon : exam->daemons) {
    daemons.push_back({{"name", daemon.name},
                       {"asked", daemon.asked},
                       {"said", daemon.said.has_value()},
                       {"silent_because", daemon.silent_because}});
  }
  return {200, text_of({{"id", exam->id},
                        {"measure", exam->measure},
                        {"over", exam->over},
                        {"servers", exam->servers},
                        {"daemons", std::move(daemons)}})};
}

}  // namespace

std::optional<AdminHttp::Answer> answer_exam(Coordinator& coordinator, const std::string& path,
                                             const std::string* body) {
  if (!path.starts_with(kExamPrefix)) return std::nullopt;
  if (body != nullptr) return path == kExamOrder ? std::optional(order_exam(coordinator, *body)) : std::nullopt;
  return exam_status(coordinator, path.substr(sizeof kExamPrefix - 1));
}

}  // namespace tributary
