#include "cluster/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>

namespace tributary {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::uint64_t kMaxBody = 16u << 20;

// One request as a chain of callbacks: Beast's time-outs work on asynchronous operations only.
struct Exchange {
  explicit Exchange(asio::io_context& context) : resolver(context), stream(context) { parser.body_limit(kMaxBody); }

  void start(const std::string& host, const std::string& port) {
    resolver.async_resolve(host, port, [this](auto error, auto endpoints) {
      if (failed(error, "resolve")) return;
      stream.async_connect(endpoints, [this](auto connect_error, auto) {
        if (failed(connect_error, "connect")) return;
        http::async_write(stream, request, [this](auto write_error, std::size_t) {
          if (failed(write_error, "send")) return;
          http::async_read(stream, buffer, parser, [this](auto read_error, std::size_t) {
            if (!failed(read_error, "read the answer")) done = true;
          });
        });
      });
    });
  }
  bool failed(const beast::error_code& error, const char* doing) {
    if (error) problem = std::string("cannot ") + doing + ": " + error.message();
    return static_cast<bool>(error);
  }

  asio::ip::tcp::resolver resolver;
  beast::tcp_stream stream;
  http::request<http::empty_body> request;
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  bool done = false;
  std::string problem = "no answer in time";
};

}  // namespace

Result<std::string> http_get(const std::string& address, const std::string& path, std::chrono::milliseconds timeout) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size() ||
      address.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + address + "' is no admin address; give HOST:PORT as in 127.0.0.1:7071");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);

  asio::io_context context;
  Exchange exchange(context);
  exchange.request.method(http::verb::get);
  exchange.request.target(path);
  exchange.request.version(11);
  exchange.request.set(http::field::host, address);
  exchange.request.set(http::field::connection, "close");
  exchange.start(host, address.substr(colon + 1));
  context.run_for(timeout);
  if (!exchange.done) {
    return fail(ErrorCode::kUnavailable, "nobody answers at http://" + address + path + " (" + exchange.problem +
                                             "); check that the daemon runs and that this is its admin address");
  }
  const auto& response = exchange.parser.get();
  if (response.result() != http::status::ok) {
    return fail(ErrorCode::kUnavailable, "http://" + address + path + " answered " +
                                             std::to_string(response.result_int()) + ": " + response.body());
  }
  return response.body();
}

}  // namespace tributary
