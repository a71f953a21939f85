#include "common/daemon/admin_answer.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/security/keys.h"

namespace tributary {
namespace {

namespace http = boost::beast::http;

constexpr const char* kJson = "application/json";
constexpr const char* kNoBody = "requests have no body here, or a small one";
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

std::string error_json(const std::string& message) {
  const nlohmann::json body = {{"error", message}, {"pages", {"/healthz", "/status", "/metrics"}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";  // a target may be no UTF-8
}

AdminResponse make_response(unsigned version, http::status status, const char* type, std::string body) {
  AdminResponse response(status, version);
  response.set(http::field::content_type, type);
  response.set(http::field::cache_control, "no-store");
  response.set("X-Content-Type-Options", "nosniff");
  response.body() = std::move(body);
  return response;
}

// Makes the answer with the page. A browser runs only those scripts of the page that have the nonce, and sends requests
// to this port only.
AdminResponse page_response(unsigned version, const AdminHttp::Handlers& handlers) {
  const std::string nonce = random_token();
  AdminResponse response = make_response(version, http::status::ok, "text/html; charset=utf-8", handlers.page(nonce));
  response.set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" +
                                              nonce +
                                              "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action "
                                              "'none'; frame-ancestors 'none'");
  response.set("Referrer-Policy", "no-referrer");
  return response;
}

AdminResponse order(const AdminMessage& request, const std::string& path, const AdminHttp::Handlers& handlers) {
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

}  // namespace

void begin_request(AdminParser& parser, const AdminHttp::Handlers& handlers) {
  parser.header_limit(AdminHttp::kMaxHeaderBytes);
  parser.body_limit(handlers.order ? AdminHttp::kMaxOrderBytes : 0);
}

AdminResponse answer_to(const AdminMessage& request, AdminGuard& guard, const AdminHttp::Handlers& handlers) {
  const unsigned version = request.version();
  const std::string target(request.target());
  const std::string path = target.substr(0, target.find('?'));
  const bool page = path == "/" || path == "/healthz" || path == "/status" || path == "/metrics";
  try {
    const auto field = [&](http::field name) {
      const auto at = request.find(name);
      return at == request.end() ? std::nullopt : std::optional(std::string(at->value()));
    };
    const std::string method(request.method_string());
    const bool reads = request.method() == http::verb::get || request.method() == http::verb::head;
    const std::optional<AdminDenial> denial = guard.denies({.order = !reads,
                                                            .host = field(http::field::host),
                                                            .origin = field(http::field::origin),
                                                            .authorization = field(http::field::authorization),
                                                            .health = path == "/healthz",
                                                            .proved = {method, target, request.body()},
                                                            .now_ms = wall_ms()});
    if (denial) {
      AdminResponse response =
          make_response(version, http::int_to_status(denial->status), kJson, error_json(denial->why));
      if (denial->status == 401) response.set(http::field::www_authenticate, "Bearer");
      return response;
    }
    if (request.method() == http::verb::post && handlers.order && !page) return order(request, path, handlers);
    if (request.method() != http::verb::get) {
      AdminResponse response =
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

std::optional<AdminResponse> refusal_of(boost::system::error_code error) {
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

}  // namespace tributary
