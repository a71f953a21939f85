#include "common/daemon/admin_http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "common/daemon/daemon_thread.h"
#include "common/security/keys.h"

namespace tributary {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

using Response = http::response<http::string_body>;

constexpr std::chrono::milliseconds kAcceptRetry{100};  // after a failed accept (out of descriptors), so as not to spin

constexpr const char* kJson = "application/json";
constexpr const char* kNoBody = "requests have no body here, or a small one";
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

std::string error_json(const std::string& message) {
  const nlohmann::json body = {{"error", message}, {"pages", {"/healthz", "/status", "/metrics"}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";  // a target may be no UTF-8
}

Response make_response(unsigned version, http::status status, const char* type, std::string body) {
  Response response(status, version);
  response.set(http::field::content_type, type);
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  response.body() = std::move(body);
  return response;
}

// A browser runs nothing of the page but what has the nonce, and asks nobody but this port for anything.
Response page_response(unsigned version, const AdminHttp::Handlers& handlers) {
  const std::string nonce = random_token();
  Response response = make_response(version, http::status::ok, "text/html; charset=utf-8", handlers.page(nonce));
  response.set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" +
                                              nonce +
                                              "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action "
                                              "'none'; frame-ancestors 'none'");
  response.set("Referrer-Policy", "no-referrer");
  return response;
}

Response order(const http::request<http::string_body>& request, const std::string& path,
               const AdminHttp::Handlers& handlers) {
  const unsigned version = request.version();
  const bool post = request.method() == http::verb::post;
  if (post && request[http::field::content_type] != kJson) {
    return make_response(version, http::status::unsupported_media_type, kJson,
                         error_json(std::string("an order has the content type ") + kJson));
  }
  std::optional<AdminHttp::Answer> answer;
  if (handlers.order) answer = handlers.order(path, post ? &request.body() : nullptr);
  if (!answer) return make_response(version, http::status::not_found, kJson, error_json("there is no " + path));
  return make_response(version, http::int_to_status(answer->status), kJson, std::move(answer->json));
}

Response answer(const http::request<http::string_body>& request, const AdminGuard& guard,
                const AdminHttp::Handlers& handlers) {
  const unsigned version = request.version();
  const std::string target(request.target());
  const std::string path = target.substr(0, target.find('?'));
  const bool page = path == "/" || path == "/healthz" || path == "/status" || path == "/metrics";
  try {
    const auto field = [&](http::field name) {
      const auto at = request.find(name);
      return at == request.end() ? std::nullopt : std::optional(std::string(at->value()));
    };
    const bool reads = request.method() == http::verb::get || request.method() == http::verb::head;
    const std::optional<AdminDenial> denial = guard.denies({.order = !reads,
                                                            .host = field(http::field::host),
                                                            .origin = field(http::field::origin),
                                                            .authorization = field(http::field::authorization),
                                                            .health = path == "/healthz"});
    if (denial) {
      Response response = make_response(version, http::int_to_status(denial->status), kJson, error_json(denial->why));
      if (denial->status == 401) response.set(http::field::www_authenticate, "Bearer");
      return response;
    }
    if (request.method() == http::verb::post && handlers.order && !page) return order(request, path, handlers);
    if (request.method() != http::verb::get) {
      Response response =
          make_response(version, http::status::method_not_allowed, kJson, error_json("only GET is possible"));
      response.set(http::field::allow, "GET");
      return response;
    }
    if (!request.body().empty()) {
      return make_response(version, http::status::payload_too_large, kJson, error_json(kNoBody));
    }
    if (path == "/healthz") {
      const bool healthy = handlers.healthy();
      return make_response(version, healthy ? http::status::ok : http::status::service_unavailable, kJson,
                           healthy ? "{\"healthy\":true}\n" : "{\"healthy\":false}\n");
    }
    if (path == "/status") return make_response(version, http::status::ok, kJson, handlers.status_json());
    if (path == "/" && handlers.page) return page_response(version, handlers);
    if (path == "/metrics") return make_response(version, http::status::ok, kPrometheusText, handlers.metrics_text());
    return order(request, path, handlers);
  } catch (const std::exception& e) {
    return make_response(version, http::status::internal_server_error, kJson, error_json(e.what()));
  }
}

// What to say to a request that could not be read; none if there is nobody to say it to.
std::optional<Response> refusal(error_code error) {
  const unsigned version = 11;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return make_response(
        version, http::status::request_header_fields_too_large, kJson,
        error_json("the header has more than " + std::to_string(AdminHttp::kMaxHeaderBytes) + " bytes"));
  }
  if (error == http::error::body_limit || error == http::error::unexpected_body) {
    return make_response(version, http::status::payload_too_large, kJson, error_json(kNoBody));
  }
  const bool parse_error = error.category() == make_error_code(http::error::bad_method).category();
  if (!parse_error || error == http::error::end_of_stream || error == http::error::partial_message) return std::nullopt;
  return make_response(version, http::status::bad_request, kJson,
                       error_json("not an HTTP request: " + error.message()));
}

class Connection;

// The connections that there are. Those that wait for a request are listed, the longest wait first.
struct Connections {
  std::size_t open = 0;
  std::list<Connection*> waiting;
};

// One client. Keeps itself alive by the operation under way; everything on the HTTP thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const AdminGuard& guard, const AdminHttp::Handlers& handlers, Connections& all)
      : stream_(std::move(socket)), guard_(guard), handlers_(handlers), all_(all), place_(all.waiting.end()) {
    ++all_.open;
  }
  ~Connection() {
    wait_no_more();
    --all_.open;
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void read() {
    parser_.emplace();
    parser_->header_limit(AdminHttp::kMaxHeaderBytes);
    parser_->body_limit(handlers_.order ? AdminHttp::kMaxOrderBytes : 0);
    stream_.expires_after(AdminHttp::kTimeout);
    place_ = all_.waiting.insert(all_.waiting.end(), this);
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      self->wait_no_more();
      if (!error) {
        const auto& request = self->parser_->get();
        return self->write(answer(request, self->guard_, self->handlers_), request.keep_alive());
      }
      if (std::optional<Response> response = refusal(error)) self->write(std::move(*response), false);
    });
  }

  // For somebody who has a request.
  void make_room() {
    wait_no_more();
    stream_.close();
  }

 private:
  void wait_no_more() {
    if (place_ != all_.waiting.end()) all_.waiting.erase(std::exchange(place_, all_.waiting.end()));
  }

  void write(Response response, bool keep_alive) {
    response_ = std::move(response);
    response_.keep_alive(keep_alive);
    response_.prepare_payload();
    stream_.expires_after(AdminHttp::kTimeout);
    http::async_write(stream_, response_, [self = shared_from_this(), keep_alive](error_code error, std::size_t) {
      if (error) return;
      if (keep_alive) return self->read();
      error_code ignored;  // the client may be gone already
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{2 * AdminHttp::kMaxHeaderBytes};
  std::optional<http::request_parser<http::string_body>> parser_;
  Response response_;
  const AdminGuard& guard_;
  const AdminHttp::Handlers& handlers_;
  Connections& all_;
  std::list<Connection*>::iterator place_;  // end(): does not wait
};

std::string endpoint_text(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" + std::to_string(endpoint.port());
}

Result<tcp::endpoint> parse_address(asio::io_context& io, const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const bool port_ok = !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos &&
                       std::stoul(port) <= 65535;
  if (host.empty() || !port_ok) {
    return fail(ErrorCode::kConfig,
                "admin = \"" + address + "\": must be \"HOST:PORT\" with a port from 0 (any free one) to 65535");
  }
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, port, tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return fail(ErrorCode::kConfig, "admin = \"" + address + "\": this machine has no address " + host + " (" +
                                        error.message() + "); use 127.0.0.1 or 0.0.0.0");
  }
  return found.begin()->endpoint();
}

}  // namespace

struct AdminHttp::Impl {
  Impl(AdminPolicy policy, Handlers h) : guard(std::move(policy)), handlers(std::move(h)) {}

  ~Impl() {
    io.stop();
    if (thread.joinable()) thread.join();
    // Destroying `io` (declared after what its pending operations refer to) destroys the connections.
  }

  Status listen(const std::string& where) {
    const Result<tcp::endpoint> endpoint = parse_address(io, where);
    if (!endpoint) return tl::unexpected(endpoint.error());
    error_code error;
    acceptor.open(endpoint->protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);  // past connections in TIME_WAIT
    if (!error) acceptor.bind(*endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return fail(ErrorCode::kUnavailable, "cannot listen for HTTP on " + where + ": " + error.message() +
                                               "; stop what uses the port, or set `admin` to another address (port 0 "
                                               "picks a free one)");
    }
    address = endpoint_text(acceptor.local_endpoint(error));
    return {};
  }

  void accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      if (error) {
        retry.expires_after(kAcceptRetry);
        retry.async_wait([this](error_code) { accept(); });
        return;
      }
      // Over the bound whoever has been silent for longest makes room. Who finds none is closed here, also without
      // memory.
      bool room = connections.open < kMaxConnections;
      if (!room && !connections.waiting.empty() && connections.open < 2 * kMaxConnections) {
        connections.waiting.front()->make_room();
        room = true;
      }
      (void)contained([&]() -> Status {
        if (room) std::make_shared<Connection>(std::move(socket), guard, handlers, connections)->read();
        return {};
      });
      accept();
    });
  }

  const AdminGuard guard;
  const Handlers handlers;
  Connections connections;  // HTTP thread's
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  asio::steady_timer retry{io};
  std::string address;
  std::thread thread;
};

Result<std::unique_ptr<AdminHttp>> AdminHttp::start(const std::string& address, AdminPolicy policy, Handlers handlers) {
  auto impl = std::make_unique<Impl>(std::move(policy), std::move(handlers));
  if (Status status = impl->listen(address); !status) return tl::unexpected(status.error());
  impl->accept();
  impl->thread = start_thread("admin HTTP", impl->handlers.log, [&io = impl->io] { io.run(); });
  return std::unique_ptr<AdminHttp>(new AdminHttp(std::move(impl)));
}

AdminHttp::AdminHttp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminHttp::~AdminHttp() = default;

std::string AdminHttp::address() const {
  return impl_->address;
}

}  // namespace tributary
