#include <doctest/doctest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/daemon/admin_http.h"
#include "common/daemon/http_client.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::admin_http_test {
namespace {

using testing::contains;

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = 10s;
const std::string kToken(40, 't');
const AdminPolicy kPolicy{kToken, false, {"x"}};

AdminHttp::Handlers plain_handlers() {
  return {[] { return std::string("{\"round\":7}"); },
          [] { return std::string("tributary_x 1\n"); },
          [] { return true; },
          {}};
}

// Handlers of a daemon that takes orders and echoes them.
AdminHttp::Handlers obeying_handlers() {
  AdminHttp::Handlers handlers = plain_handlers();
  handlers.order = [](const std::string& path, const std::string* body) -> std::optional<AdminHttp::Answer> {
    if (!path.starts_with("/order/")) return std::nullopt;
    return AdminHttp::Answer{body && body->empty() ? 400u : 200u, (body ? "did " + *body : "state of") + " " + path};
  };
  return handlers;
}

std::string post(const std::string& target, const std::string& body, const std::string& type = "application/json") {
  return "POST " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + kToken +
         "\r\nContent-Type: " + type + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::unique_ptr<AdminHttp> started(AdminHttp::Handlers handlers = plain_handlers()) {
  return required(AdminHttp::start("127.0.0.1:0", kPolicy, std::move(handlers)));
}

// A bare TCP connection, for requests that no proper client sends.
class Raw {
 public:
  explicit Raw(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    socket_.connect({asio::ip::make_address(address.substr(0, colon)),
                     static_cast<std::uint16_t>(std::stoul(address.substr(colon + 1)))});
  }
  void send(const std::string& bytes) {
    boost::system::error_code ignored;  // the other side may refuse midway
    asio::write(socket_, asio::buffer(bytes), ignored);
  }
  // Everything until the other side closes.
  std::string rest() {
    std::string all;
    boost::system::error_code error;
    asio::read(socket_, asio::dynamic_buffer(all), error);
    return all;
  }
  std::string read_until_body(const std::string& end) {
    std::string all;
    char byte = 0;
    boost::system::error_code error;
    while (!error && !all.ends_with(end)) {
      if (asio::read(socket_, asio::buffer(&byte, 1), error) == 1) all += byte;
    }
    return all;
  }

 private:
  asio::io_context io_;
  tcp::socket socket_{io_};
};

std::string ask(const AdminHttp& http, const std::string& request) {
  Raw raw(http.address());
  raw.send(request);
  return raw.rest();
}

std::string get(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
}

// A server that answers its first connection with `bytes`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string bytes) : bytes_(std::move(bytes)) {
    thread_ = std::thread([this] {
      tcp::socket socket = acceptor_.accept();
      boost::system::error_code ignored;
      std::vector<char> request(4096);
      socket.read_some(asio::buffer(request), ignored);
      asio::write(socket, asio::buffer(bytes_), ignored);
      socket.read_some(asio::buffer(request), ignored);  // until the client goes
    });
  }
  ~OneAnswer() { thread_.join(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()); }

 private:
  asio::io_context io_;
  tcp::acceptor acceptor_{io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::string bytes_;
  std::thread thread_;
};

ErrorCode code_of(const Result<std::string>& result) {
  REQUIRE_FALSE(result);
  return result.error().code;
}

}  // namespace

TEST_CASE("a rebinding name, a foreign page and an order without its token are refused, whatever the method") {
  std::atomic<int> orders{0};
  AdminHttp::Handlers handlers = obeying_handlers();
  handlers.order = [&](const std::string&, const std::string* body) -> std::optional<AdminHttp::Answer> {
    orders += body != nullptr;
    return AdminHttp::Answer{200, "done"};
  };
  const auto http = started(std::move(handlers));
  const std::string bearer = "Authorization: Bearer " + kToken + "\r\n";
  for (const std::string method : {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"}) {
    const auto asked = [&](const std::string& fields) {
      return ask(*http, method + " /order/save HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n" +
                            fields + "Content-Length: 2\r\n\r\n{}");
    };
    CHECK_MESSAGE(contains(asked("Host: evil.example.org\r\n" + bearer), " 403 "), method);
    CHECK_MESSAGE(contains(asked(bearer), " 403 "), method);  // no Host at all
    CHECK_MESSAGE(contains(asked("Host: x\r\nOrigin: http://evil.example.org\r\n" + bearer), " 403 "), method);
    CHECK_MESSAGE(contains(asked("Host: x\r\nOrigin: null\r\n" + bearer), " 403 "), method);
    if (method == "GET" || method == "HEAD") continue;
    CHECK_MESSAGE(contains(asked("Host: x\r\n"), " 401 "), method);
    CHECK_MESSAGE(contains(asked("Host: x\r\nAuthorization: Bearer wrong\r\n"), " 401 "), method);
  }
  CHECK(orders == 0);
  CHECK(contains(ask(*http, post("/order/save", "{}")), " 200 "));
  CHECK(orders == 1);
}

TEST_CASE("the three pages are served with their types") {
  const auto http = started();
  CHECK(http_get(http->address(), "/status", kPatience) == "{\"round\":7}");
  CHECK(http_get(http->address(), "/metrics", kPatience) == "tributary_x 1\n");
  CHECK(http_get(http->address(), "/healthz?verbose=1", kPatience) == "{\"healthy\":true}\n");
  CHECK(contains(ask(*http, get("/status")), "Content-Type: application/json\r\n"));
  CHECK(contains(ask(*http, get("/metrics")), "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
}

TEST_CASE("a page for people is HTML that may run nothing but what has its nonce; others have none") {
  auto handlers = obeying_handlers();
  handlers.page = [](const std::string& nonce) { return "<p>" + nonce + "</p>"; };
  const auto http = started(std::move(handlers));
  const auto asked = [&] { return ask(*http, get("/")); };
  const std::string first = asked();
  const std::size_t at = first.find("<p>");
  REQUIRE(at != std::string::npos);
  const std::string nonce = first.substr(at + 3, first.find("</p>") - at - 3);
  CHECK(nonce.size() >= 32);
  CHECK(contains(first, "Content-Type: text/html; charset=utf-8\r\n"));
  CHECK(contains(first, "Cache-Control: no-store\r\n"));
  CHECK(contains(first, "X-Content-Type-Options: nosniff\r\n"));
  CHECK(contains(first, "Content-Security-Policy: default-src 'none'; script-src 'nonce-" + nonce +
                            "'; style-src 'nonce-" + nonce + "'; connect-src 'self';"));
  CHECK_FALSE(contains(asked(), nonce));
  CHECK(contains(ask(*http, post("/", "{}")), " 405 "));
  CHECK(contains(ask(*http, "GET / HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n"), " 403 "));
  CHECK(contains(ask(*started(), get("/")), " 404 "));

  auto again = obeying_handlers();
  again.page = [](const std::string&) { return std::string("facts"); };
  const auto exposed = AdminHttp::start("127.0.0.1:0", {kToken, true, {"x"}}, std::move(again));
  REQUIRE_MESSAGE(exposed, exposed.error().message);
  CHECK(contains(ask(**exposed, get("/")), " 401 "));
  const std::string bearer = "Authorization: Bearer " + kToken + "\r\n";
  CHECK(contains(ask(**exposed, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + bearer + "\r\n"), "facts"));
}

TEST_CASE("an unhealthy daemon answers 503") {
  auto handlers = plain_handlers();
  handlers.healthy = [] { return false; };
  const auto http = started(std::move(handlers));
  CHECK(contains(ask(*http, get("/healthz")), "HTTP/1.1 503 "));
  const auto asked = http_get(http->address(), "/healthz", kPatience);
  CHECK(code_of(asked) == ErrorCode::kUnavailable);
  CHECK(contains(asked.error().message, "status 503: {\"healthy\":false}"));
}

TEST_CASE("an unknown page is a 404 that lists the pages, and another method a 405") {
  const auto http = started();
  const std::string missing = ask(*http, get("/stats"));
  CHECK(contains(missing, "HTTP/1.1 404 "));
  CHECK(contains(missing, R"({"error":"there is no /stats","pages":["/healthz","/status","/metrics"]})"));
  for (const char* method : {"PUT", "DELETE", "HEAD"}) {
    const std::string refused =
        ask(*http, std::string(method) + " /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                       "Authorization: Bearer " + kToken + "\r\n\r\n");
    CHECK(contains(refused, "HTTP/1.1 405 "));
    CHECK(contains(refused, "Allow: GET\r\n"));
  }
}

TEST_CASE("a handler that throws is a 500 for its asker, and the next asker is served") {
  auto handlers = plain_handlers();
  handlers.status_json = []() -> std::string { throw std::runtime_error("no status"); };
  const auto http = started(std::move(handlers));
  CHECK(contains(ask(*http, get("/status")), "HTTP/1.1 500 "));
  CHECK(contains(ask(*http, get("/status")), "no status"));
  CHECK(contains(ask(*http, get("/healthz")), "HTTP/1.1 200 "));
}

TEST_CASE("garbage, a body and an oversized header are refused, and the next asker is served") {
  const auto http = started();
  CHECK(contains(ask(*http, "\x01\x02\x03 garbage\r\n\r\n"), "HTTP/1.1 400 "));
  CHECK(contains(ask(*http, "POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"), "HTTP/1.1 413 "));
  CHECK(contains(ask(*http, "GET /" + std::string(AdminHttp::kMaxHeaderBytes, 'a') + " HTTP/1.1\r\n\r\n"),
                 "HTTP/1.1 431 "));
  ask(*http, std::string(1u << 20, 'a'));  // refused before it is all read: the answer may be lost with the connection
  CHECK(contains(ask(*http, get("/healthz")), "HTTP/1.1 200 "));
}

TEST_CASE("orders are taken as JSON, below their own paths, and only where there is somebody to carry them out") {
  const auto http = started(obeying_handlers());
  const auto done = required(http_order(http->address(), "/order/save", "{}", kPatience, kToken));
  CHECK(done.status == 200);
  CHECK(done.body == "did {} /order/save");
  CHECK(http_order(http->address(), "/order/save", "", kPatience, kToken)->status == 400);
  CHECK(http_order(http->address(), "/order/3", std::nullopt, kPatience, kToken)->body == "state of /order/3");
  CHECK(http_order(http->address(), "/other", "{}", kPatience, kToken)->status == 404);
  CHECK(http_order(http->address(), "/status", "{}", kPatience, kToken)->status == 405);
  CHECK(contains(ask(*http, get("/status")), "{\"round\":7}"));
  // Requests that a form of a web page can send.
  CHECK(contains(ask(*http, post("/order/save", "{}", "text/plain")), "415 "));
  CHECK(contains(ask(*http, post("/order/save", std::string(AdminHttp::kMaxOrderBytes + 1, 'x'))), "413 "));
  CHECK(contains(ask(*http, "GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"),
                 "413 "));
  const auto plain = started();
  CHECK(http_order(plain->address(), "/order/save", "{}", kPatience, kToken)->status == 413);
  CHECK(contains(ask(*plain, post("/order/save", "")), "405 "));
}

TEST_CASE("a connection may ask several times") {
  const auto http = started();
  Raw raw(http->address());
  for (int i = 0; i < 3; ++i) {
    raw.send("GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(contains(raw.read_until_body("{\"round\":7}"), "HTTP/1.1 200 "));
  }
}

TEST_CASE("of connections over the bound the one that was silent for longest is closed, whoever asks is served") {
  const auto http = started();
  std::vector<std::unique_ptr<Raw>> idle;
  for (std::size_t i = 0; i < AdminHttp::kMaxConnections; ++i) {
    idle.push_back(std::make_unique<Raw>(http->address()));
    idle.back()->send("GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(contains(idle.back()->read_until_body("{\"round\":7}"), "HTTP/1.1 200 "));
  }
  CHECK(http_get(http->address(), "/healthz", kPatience).has_value());
  CHECK(idle.front()->rest().empty());
  idle.back()->send("GET /status HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(contains(idle.back()->read_until_body("{\"round\":7}"), "HTTP/1.1 200 "));
}

TEST_CASE("a client that sends nothing is closed after the time-out, and others are served meanwhile") {
  const auto http = started();
  const auto begin = Clock::now();
  Raw silent(http->address());
  silent.send("GET /sta");
  CHECK(http_get(http->address(), "/healthz", kPatience));
  CHECK(silent.rest().empty());
  CHECK(Clock::now() - begin >= AdminHttp::kTimeout - 1s);
  CHECK(Clock::now() - begin < AdminHttp::kTimeout + kPatience);
}

TEST_CASE("stopping does not wait for clients, and frees the port") {
  auto http = started();
  const std::string address = http->address();
  Raw idle(address);
  idle.send("GET /sta");
  const auto begin = Clock::now();
  http.reset();
  CHECK(Clock::now() - begin < 3s);
  CHECK(idle.rest().empty());
  const auto again = required(AdminHttp::start(address, kPolicy, plain_handlers()));
  CHECK(again->address() == address);
}

TEST_CASE("a port that is taken is refused with the address and the cure") {
  const auto http = started();
  const auto second = failure_of(AdminHttp::start(http->address(), kPolicy, plain_handlers()));
  CHECK(second.code == ErrorCode::kUnavailable);
  CHECK(contains(second.message, http->address()));
  CHECK(contains(second.message, "port 0 picks a free one"));
}

TEST_CASE("an address that is none is refused") {
  for (const char* bad :
       {"", "8080", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:65536", "127.0.0.1:http", "1.2.3.4.5:80"}) {
    const auto http = failure_of(AdminHttp::start(bad, kPolicy, plain_handlers()));
    CHECK(http.code == ErrorCode::kConfig);
    CHECK(contains(http.message, "admin = \"" + std::string(bad) + "\""));
  }
}

TEST_CASE("asking an address that is none, or nobody, is told apart") {
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:x", ":80"}) {
    CHECK(code_of(http_get(bad, "/status", kPatience)) == ErrorCode::kInvalidArgument);
  }
  CHECK(code_of(http_get("127.0.0.1:80", "status", kPatience)) == ErrorCode::kInvalidArgument);
  std::string address;
  { address = started()->address(); }
  const auto nobody = http_get(address, "/status", kPatience);
  CHECK(code_of(nobody) == ErrorCode::kUnavailable);
  CHECK(contains(nobody.error().message, "http://" + address + "/status"));
}

TEST_CASE("an answer that is too large, malformed, or never comes is refused in time") {
  {
    const OneAnswer huge("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(kMaxHttpBody + 1) + "\r\n\r\n");
    CHECK(code_of(http_get(huge.address(), "/", kPatience)) == ErrorCode::kLimit);
  }
  {
    const OneAnswer garbage("\x01\x02 no http\r\n\r\n");
    CHECK(code_of(http_get(garbage.address(), "/", kPatience)) == ErrorCode::kUnavailable);
  }
  {
    const OneAnswer silent("");
    const auto begin = Clock::now();
    CHECK(code_of(http_get(silent.address(), "/", 200ms)) == ErrorCode::kTimeout);
    CHECK(Clock::now() - begin < 5s);
  }
}

}  // namespace tributary::admin_http_test
