#include "common/daemon/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/security/token_proof.h"
#include "common/system/incarnation.h"

namespace tributary {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kShownBody = 200;  // bytes of a refusal's body in the error message

// resolve -> connect -> write -> read, each step started by the one before it. `done` is set when the chain has ended.
class Exchange {
 public:
  Exchange(asio::io_context& io, const std::string& host, const std::string& port, const std::string& path,
           const std::optional<std::string>& json, const std::string& token)
      : resolver_(io), stream_(io), request_(json ? http::verb::post : http::verb::get, path, 11) {
    const bool v6 = host.find(':') != std::string::npos;
    request_.set(http::field::host, (v6 ? "[" + host + "]" : host) + ":" + port);
    if (!token.empty()) {
      const std::string method(request_.method_string());
      const ProvedRequest proved{method, path, json ? std::string_view(*json) : std::string_view()};
      request_.set(http::field::authorization, token_proof_of(token, proved, wall_ms(), random_incarnation()));
    }
    if (json) {
      request_.set(http::field::content_type, "application/json");
      request_.body() = *json;
      request_.prepare_payload();
    }
    request_.keep_alive(false);
    parser_.body_limit(kMaxHttpBody);
    resolver_.async_resolve(host, port, [this](error_code error, const tcp::resolver::results_type& found) {
      if (error) return finish(error);
      stream_.async_connect(found, [this](error_code e, const tcp::endpoint&) { e ? finish(e) : write(); });
    });
  }

  bool done() const { return done_.has_value(); }
  error_code error() const { return *done_; }
  unsigned status() const { return parser_.get().result_int(); }
  std::string take_body() { return std::move(parser_.get().body()); }

 private:
  void write() {
    http::async_write(stream_, request_, [this](error_code error, std::size_t) { error ? finish(error) : read(); });
  }
  void read() {
    http::async_read(stream_, buffer_, parser_, [this](error_code error, std::size_t) { finish(error); });
  }
  void finish(error_code error) { done_ = error; }

  tcp::resolver resolver_;
  beast::tcp_stream stream_;
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  std::optional<error_code> done_;
};

}  // namespace

Result<HttpAnswer> http_order(const std::string& address, const std::string& path,
                              const std::optional<std::string>& json, std::chrono::milliseconds timeout,
                              const std::string& token) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  if (host.empty() || port.empty() || port.find_first_not_of("0123456789") != std::string::npos ||
      !path.starts_with('/')) {
    return fail(ErrorCode::kInvalidArgument,
                "\"" + address + "\" + \"" + path + "\" is no HTTP address; use HOST:PORT and /PATH");
  }
  const std::string url = "http://" + address + path;

  asio::io_context io{1};
  Exchange exchange(io, host, port, path, json, token);
  io.run_for(timeout);
  if (!exchange.done()) {
    return fail(ErrorCode::kTimeout, url + " did not answer within " + std::to_string(timeout.count()) + " ms");
  }
  if (exchange.error() == http::error::body_limit) {
    return fail(ErrorCode::kLimit, url + " answered with more than " + std::to_string(kMaxHttpBody) + " bytes");
  }
  if (exchange.error()) {
    return fail(ErrorCode::kUnavailable, url + " cannot be asked: " + exchange.error().message() +
                                             "; does the daemon run, and is this its `admin` address?");
  }
  const unsigned status = exchange.status();
  return HttpAnswer{status, exchange.take_body()};
}

Result<std::string> http_get(const std::string& address, const std::string& path, std::chrono::milliseconds timeout,
                             const std::string& token) {
  Result<HttpAnswer> answer = http_order(address, path, std::nullopt, timeout, token);
  if (!answer) return tl::unexpected(answer.error());
  if (answer->status != 200) {
    return fail(ErrorCode::kUnavailable, "http://" + address + path + " answered with status " +
                                             std::to_string(answer->status) + ": " +
                                             answer->body.substr(0, kShownBody));
  }
  return std::move(answer->body);
}

}  // namespace tributary
