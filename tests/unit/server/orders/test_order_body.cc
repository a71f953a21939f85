#include <doctest/doctest.h>

#include <string>

#include "server/orders/order_body.h"
#include "tests/unit/required.h"

namespace tributary::order_body_test {
namespace {

template <class T>
std::string refusal(const Result<T>& order) {
  if (order) return "(accepted)";
  return order.error().code == ErrorCode::kInvalidArgument ? order.error().message : "(wrong code)";
}

}  // namespace

TEST_CASE("an order says what its fields say") {
  const auto save = required(save_order_of(R"({"job":"mlp","directory":"/d","committed":true})"));
  CHECK(save.job == "mlp");
  CHECK(save.directory == "/d");
  CHECK(save.committed);
  const auto restore = required(restore_order_of(R"({"checkpoint":"/d/mlp-round-3","name":"other","force":true})"));
  CHECK(restore.directory == "/d/mlp-round-3");
  CHECK(restore.name == "other");
  CHECK(restore.force);
  CHECK(*job_name_of(R"({"name":"mlp"})") == "mlp");
}

TEST_CASE("what is no order is refused with the field") {
  for (const char* const body : {"", "[]", "{", "7"}) CHECK(refusal(job_name_of(body)) == "an order is a JSON object");
  CHECK(refusal(job_name_of(R"({"name":7})")) == "\"name\" must be a text");
  CHECK(refusal(save_order_of(R"({"job":"mlp"})")) == "\"directory\" must be a text");
  CHECK(refusal(save_order_of(R"({"job":"mlp","directory":"/d","committed":1})")) ==
        "\"committed\" must be true or false");
  CHECK(refusal(restore_order_of(R"({"checkpoint":"d","name":"mlp"})")) ==
        "'d' is no absolute path; servers run elsewhere");
}

}  // namespace tributary::order_body_test
