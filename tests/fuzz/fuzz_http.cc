// Requests to the admin port, and the bodies of orders: from any client of the port.
#include <boost/beast/core.hpp>
#include <sstream>

#include "common/daemon/admin_answer.h"
#include "common/security/path_roots.h"
#include "server/orders/order_body.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::http {
namespace {

namespace beast = boost::beast;
using boost::system::error_code;

const std::string kToken(40, 't');

// A connection with these bytes, some at a time.
class Received {
 public:
  explicit Received(std::span<const std::byte> bytes) : left_(bytes), piece_(1 + bytes.size() % 97) {}
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers, error_code& error) {
    const std::size_t most = std::min(piece_, left_.size());
    const std::size_t copied = boost::asio::buffer_copy(buffers, boost::asio::buffer(left_.data(), most));
    left_ = left_.subspan(copied);
    error = copied == 0 ? error_code(boost::asio::error::eof) : error_code();
    return copied;
  }
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers) {
    error_code error;
    const std::size_t copied = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return copied;
  }

 private:
  std::span<const std::byte> left_;
  const std::size_t piece_;
};

// The system reads a path to its first NUL.
void must_stay_below(const PathRoots& roots, const std::string& path) {
  require(!roots.check(path) || roots.check(path.c_str()), "a path that is allowed is below a root");
}

// Server 0's, as far as they need no cluster.
AdminHttp::Handlers handlers(bool& ordered) {
  AdminHttp::Handlers handlers;
  handlers.status_json = [] { return std::string("{}"); };
  handlers.metrics_text = [] { return std::string("tributary_x 1\n"); };
  handlers.healthy = [] { return true; };
  handlers.order = [&ordered](const std::string& path, const std::string* body) -> std::optional<AdminHttp::Answer> {
    static const PathRoots roots({"/shared"}, true);
    if (body == nullptr) return std::nullopt;
    ordered = true;
    if (path == "/job/stop") return AdminHttp::Answer{job_name_of(*body) ? 200u : 400u, "{}"};
    if (path == "/doctor/order") return AdminHttp::Answer{diagnosis_order_of(*body) ? 200u : 400u, "{}"};
    if (path == "/trace/order") return AdminHttp::Answer{trace_order_of(*body) ? 200u : 400u, "{}"};
    if (path == "/checkpoint/save") {
      const auto order = save_order_of(*body);
      if (order) must_stay_below(roots, order->directory);
      return AdminHttp::Answer{order ? 200u : 400u, "{}"};
    }
    const auto order = restore_order_of(*body);
    if (order) must_stay_below(roots, order->directory);
    return AdminHttp::Answer{order ? 200u : 400u, "{}"};
  };
  return handlers;
}

void must_be_http(AdminResponse response) {
  response.prepare_payload();
  std::ostringstream out;
  out << response;
  beast::http::response_parser<beast::http::string_body> parser;
  error_code error;
  parser.put(boost::asio::buffer(out.str()), error);
  require(!error && parser.get().result() == response.result(), "an answer is HTTP");
}

std::string post(const std::string& target, const std::string& body) {
  return "POST " + target + " HTTP/1.1\r\nHost: localhost:7071\r\nAuthorization: Bearer " + kToken +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

std::vector<Bytes> seeds() {
  const std::string get = "GET /status HTTP/1.1\r\nHost: [::1]:7071\r\n\r\n";
  return {
      bytes_of(get),
      bytes_of("GET /healthz?x HTTP/1.0\r\nHost: x\r\nOrigin: http://x\r\nConnection: keep-alive\r\n\r\n" + get),
      bytes_of(post("/checkpoint/save", R"({"job":"mlp","directory":"/shared/d","committed":true})") + get),
      bytes_of(post("/checkpoint/restore", R"({"checkpoint":"/d\u0000/../shared/x","name":"mlp","force":false})")),
      bytes_of(post("/doctor/order", R"({"measure":true,"paths":["/data","/d\u0000"]})") +
               post("/trace/order", R"({"job":"mlp","rounds":20})")),
      bytes_of("GET /doctor/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Proof 1800000000000 7 " + kToken +
               "\r\n\r\n" + "POST /job/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Proof 1 2 3\r\n\r\n"),
      bytes_of("POST /job/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + kToken +
               "\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n{\"name\":\"mlp\"}\r\n0"
               "\r\n\r\n")};
}

void run(std::span<const std::byte> bytes) {
  bool ordered = false;
  const AdminHttp::Handlers handles = handlers(ordered);
  AdminGuard guard({kToken, false, {"x"}});
  Received received(bytes);
  beast::flat_buffer buffer{kAdminBuffer};
  for (bool more = true; more;) {
    AdminParser parser;
    begin_request(parser, handles);
    error_code error;
    beast::http::read(received, buffer, parser, error);
    if (error) {
      if (const auto refusal = refusal_of(error)) must_be_http(*refusal);
      break;
    }
    ordered = false;
    const AdminMessage& request = parser.get();
    must_be_http(answer_to(request, guard, handles));
    require(!ordered || request[beast::http::field::authorization] == "Bearer " + kToken, "no order without the token");
    require(request.body().size() <= AdminHttp::kMaxOrderBytes, "a body has its bound");
    more = request.keep_alive();
  }
}

Target target() {
  return {"http", seeds, run};
}

}  // namespace tributary::fuzz::http
