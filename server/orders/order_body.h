// Parses the bodies of orders (server/orders/checkpoint_http.h has the orders). Pure. Never trusts its input:
// kInvalidArgument names the field.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "common/base/result.h"
#include "server/coordinator/orders/checkpoint_orders.h"
#include "server/coordinator/orders/diagnosis_keeper.h"

namespace tributary {

Result<SaveOrder> save_order_of(const std::string& body);        // but for the time
Result<RestoreOrder> restore_order_of(const std::string& body);  // but for the manifest and its checksum
Result<std::string> job_name_of(const std::string& body);
// The chunks of a job go to the servers that are there, but for these.
struct DealOrder {
  std::string name;
  std::set<std::uint16_t> without;
};
Result<DealOrder> deal_order_of(const std::string& body);
struct TraceOrder {
  std::string job;
  std::uint64_t rounds = 0;
};
Result<TraceOrder> trace_order_of(const std::string& body);
Result<DiagnosisOrder> diagnosis_order_of(const std::string& body);

}  // namespace tributary
