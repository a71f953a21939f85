#include "server/orders/checkpoint_http.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/clock.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/orders/order_body.h"
#include "server/orders/order_http.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kCheckpointPrefix[] = "/checkpoint/";
constexpr char kRemoveJob[] = "/job/remove";
constexpr char kStopJob[] = "/job/stop";
constexpr char kDealJob[] = "/job/deal";

AdminHttp::Answer save(Coordinator& coordinator, const PathRoots& roots, const std::string& body) {
  Result<SaveOrder> order = save_order_of(body);
  if (!order) return refusal(order.error());
  order->created = utc_now();
  if (const Status fits = roots.check(order->directory); !fits) return refusal(fits.error());
  return accepted(coordinator.save_checkpoint(std::move(*order)));
}

AdminHttp::Answer restore(Coordinator& coordinator, const PathRoots& roots, const std::string& body) {
  Result<RestoreOrder> order = restore_order_of(body);
  if (!order) return refusal(order.error());
  const Result<Folder> folder = roots.open(order->directory);
  if (!folder) return refusal(folder.error());
  Result<Manifest> manifest = open_checkpoint(folder->through());
  if (!manifest) return refusal(folder->named(manifest.error()));
  Result<std::string> checksum = manifest_checksum(folder->through());
  if (!checksum) return refusal(folder->named(checksum.error()));
  order->manifest = std::move(*manifest);
  order->manifest_checksum = std::move(*checksum);
  return accepted(coordinator.restore_checkpoint(std::move(*order)));
}

AdminHttp::Answer checkpoint_status(const Coordinator& coordinator, const std::string& digits) {
  const std::optional<std::uint64_t> id = number_in(digits);
  const std::optional<CheckpointStatus> found = id ? coordinator.checkpoint(*id) : std::nullopt;
  if (!found) {
    return refusal({ErrorCode::kNotFound, "there is no checkpoint operation " + digits +
                                              " (any more); the coordinator may have been restarted since"});
  }
  Json awaited = Json::array();
  for (const std::uint16_t server : found->awaited) awaited.push_back(server);
  return {200, text_of({{"id", found->id},
                        {"order", name_of(found->kind)},
                        {"job", found->job},
                        {"step", name_of(found->step)},
                        {"round", found->round.value},
                        {"path", found->path},
                        {"bytes", found->bytes},
                        {"unchanged", found->unchanged},
                        {"lacks", found->lacks.empty() ? Json(nullptr) : Json(found->lacks)},
                        {"awaited_servers", std::move(awaited)},
                        {"error", found->message.empty() ? Json(nullptr) : Json(found->message)},
                        {"seconds", found->over() ? Json(static_cast<double>(found->ended_ms - found->begun_ms) * 1e-3)
                                                  : Json(nullptr)}})};
}

// The answer to an order that is carried out at once: its number as `told`.
AdminHttp::Answer answer(const char* told, const Result<std::uint64_t>& done) {
  if (!done) return refusal(done.error());
  return {200, text_of({{told, *done}})};
}

// Orders for one job, by its name.
AdminHttp::Answer job_order(Coordinator& coordinator, Result<std::uint64_t> (Coordinator::*order)(std::string),
                            const char* told, const std::string& body) {
  Result<std::string> name = job_name_of(body);
  return name ? answer(told, (coordinator.*order)(std::move(*name))) : refusal(name.error());
}

AdminHttp::Answer deal(Coordinator& coordinator, const std::string& body) {
  Result<DealOrder> order = deal_order_of(body);
  if (!order) return refusal(order.error());
  return answer("servers", coordinator.deal_job(std::move(order->name), std::move(order->without)));
}

}  // namespace

std::optional<AdminHttp::Answer> answer_order(Coordinator& coordinator, const PathRoots& roots, const std::string& path,
                                              const std::string* body) {
  if (path == kRemoveJob && body != nullptr) return job_order(coordinator, &Coordinator::remove_job, "removed", *body);
  if (path == kStopJob && body != nullptr) return job_order(coordinator, &Coordinator::stop_job, "round", *body);
  if (path == kDealJob && body != nullptr) return deal(coordinator, *body);
  if (!path.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string what = path.substr(sizeof kCheckpointPrefix - 1);
  if (body == nullptr) return checkpoint_status(coordinator, what);
  if (what == "save") return save(coordinator, roots, *body);
  if (what == "restore") return restore(coordinator, roots, *body);
  return std::nullopt;
}

}  // namespace tributary
