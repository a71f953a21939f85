#include "common/daemon/admin_http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/daemon/admin_answer.h"
#include "common/daemon/daemon_thread.h"

namespace tributary {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptRetry{100};  // after a failed accept (out of descriptors), so as not to spin

class Connection;

// The open connections. Connections that wait for a request are listed, the longest wait first.
struct Connections {
  std::size_t open = 0;
  std::list<Connection*> waiting;
};

// One client. Keeps itself alive by the operation under way; everything on the HTTP thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, AdminGuard& guard, const AdminHttp::Handlers& handlers, Connections& all)
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
    begin_request(parser_.emplace(), handlers_);
    stream_.expires_after(AdminHttp::kTimeout);
    place_ = all_.waiting.insert(all_.waiting.end(), this);
    http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
      self->wait_no_more();
      if (!error) {
        const auto& request = self->parser_->get();
        return self->write(answer_to(request, self->guard_, self->handlers_), request.keep_alive());
      }
      if (std::optional<AdminResponse> response = refusal_of(error)) self->write(std::move(*response), false);
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

  void write(AdminResponse response, bool keep_alive) {
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
  beast::flat_buffer buffer_{kAdminBuffer};
  std::optional<AdminParser> parser_;
  AdminResponse response_;
  AdminGuard& guard_;
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
  Impl(AdminPolicy policy, Handlers h) : guard(std::move(policy), wall_ms()), handlers(std::move(h)) {}

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
      // Over the bound the connection that has been silent for longest makes room. If there is no room, or no memory,
      // the new connection is closed here.
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

  AdminGuard guard;
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
