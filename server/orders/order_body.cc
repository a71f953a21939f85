#include "server/orders/order_body.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/config/json_text.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

// Fields of an order, each of them known and of its type.
class Fields {
 public:
  explicit Fields(const std::string& body) : json_(ordered_json_in(body)) {
    if (!json_.is_object()) complaint_ = "an order is a JSON object";
  }
  std::string text(const char* key) {
    const Json* found = find(key);
    if (found && found->is_string()) return found->get<std::string>();
    complain(key, "must be a text");
    return {};
  }
  // False if it is not there.
  bool flag(const char* key) {
    const Json* found = find(key);
    if (found && !found->is_boolean()) complain(key, "must be true or false");
    return found && found->is_boolean() && found->get<bool>();
  }
  std::uint64_t number(const char* key) {
    const Json* found = find(key);
    if (found && found->is_number_unsigned()) return found->get<std::uint64_t>();
    complain(key, "must be a whole number, 0 or more");
    return 0;
  }
  // None if it is not there.
  std::vector<std::string> texts(const char* key) {
    const Json* found = find(key);
    std::vector<std::string> all;
    if (found && !found->is_array()) complain(key, "must be a list of texts");
    if (!found || !found->is_array()) return all;
    for (const Json& one : *found) {
      if (!one.is_string()) complain(key, "must be a list of texts");
      if (one.is_string()) all.push_back(one.get<std::string>());
    }
    return all;
  }
  // Indices of servers; none if it is not there.
  std::set<std::uint16_t> servers(const char* key) {
    std::set<std::uint16_t> all;
    const Json* found = find(key);
    if (!found) return all;
    for (const Json& one : found->is_array() ? *found : Json::array({nullptr})) {
      const bool fits = one.is_number_unsigned() && one.get<std::uint64_t>() < kMaxShards;
      if (!fits) complain(key, "must be a list of servers' indices");
      if (fits) all.insert(one.get<std::uint16_t>());
    }
    return all;
  }
  Status status() const {
    return complaint_.empty() ? Status{} : Status(fail(ErrorCode::kInvalidArgument, complaint_));
  }

 private:
  const Json* find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(key);
    return found == json_.end() ? nullptr : &*found;
  }
  void complain(const char* key, const char* about) {
    if (complaint_.empty()) complaint_ = std::string("\"") + key + "\" " + about;
  }

  const Json json_;
  std::string complaint_;
};

// Returns the value if all fields could be read.
template <class T>
Result<T> if_read(const Fields& fields, T value) {
  if (const Status read = fields.status(); !read) return tl::unexpected(read.error());
  return value;
}

}  // namespace

Result<SaveOrder> save_order_of(const std::string& body) {
  Fields fields(body);
  SaveOrder order;
  order.job = fields.text("job");
  order.directory = fields.text("directory");
  order.committed = fields.flag("committed");
  return if_read(fields, std::move(order));
}

Result<RestoreOrder> restore_order_of(const std::string& body) {
  Fields fields(body);
  RestoreOrder order;
  order.directory = fields.text("checkpoint");
  order.name = fields.text("name");
  order.force = fields.flag("force");
  if (fields.status() && !order.directory.starts_with('/')) {
    return fail(ErrorCode::kInvalidArgument, "'" + order.directory + "' is no absolute path; servers run elsewhere");
  }
  return if_read(fields, std::move(order));
}

Result<TraceOrder> trace_order_of(const std::string& body) {
  Fields fields(body);
  TraceOrder order;
  order.job = fields.text("job");
  order.rounds = fields.number("rounds");
  return if_read(fields, std::move(order));
}

Result<DiagnosisOrder> diagnosis_order_of(const std::string& body) {
  Fields fields(body);
  DiagnosisOrder order;
  order.measure = fields.flag("measure");
  order.paths = fields.texts("paths");
  return if_read(fields, std::move(order));
}

Result<DealOrder> deal_order_of(const std::string& body) {
  Fields fields(body);
  DealOrder order;
  order.name = fields.text("name");
  order.without = fields.servers("without");
  return if_read(fields, std::move(order));
}

Result<std::string> job_name_of(const std::string& body) {
  Fields fields(body);
  return if_read(fields, fields.text("name"));
}

}  // namespace tributary
