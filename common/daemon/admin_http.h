// The daemons' HTTP endpoint: GET /healthz, /status (JSON) and /metrics (Prometheus text), / (a page for people, where
// there is one), and orders. It has a thread of its own, so that a slow client, or a scrape, never delays a lane.
//
// It trusts no client: connections and requests are bounded, only orders have a body, and every request has a deadline.
// AdminGuard authorizes requests. An order must also be declared as JSON: a web page cannot make a browser do that.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/daemon/admin_guard.h"

namespace tributary {

class AdminHttp {
 public:
  struct Answer {
    unsigned status = 200;
    std::string json;
  };
  // Called on the HTTP thread only, one at a time. An exception becomes a 500 for the client.
  struct Handlers {
    std::function<std::string()> status_json;
    std::function<std::string()> metrics_text;
    std::function<bool()> healthy;  // false: /healthz answers 503
    // Other paths: POST with a JSON body, or GET (body null). Nothing: there is no such path. May be null.
    std::function<std::optional<Answer>(const std::string& path, const std::string* body)> order;
    std::function<void(const std::string&)> log;  // why the thread failed, if it ever does; may be null
    // GET /: HTML whose styles and scripts have this nonce. May be null: there is no page then.
    std::function<std::string(const std::string& nonce)> page;
  };

  // Beyond this number the connection that has waited for its next request for longest is closed.
  static constexpr std::size_t kMaxConnections = 32;
  static constexpr std::size_t kMaxHeaderBytes = 8u << 10;
  static constexpr std::size_t kMaxOrderBytes = 16u << 10;
  static constexpr std::chrono::seconds kTimeout{5};  // for a request to arrive, for an answer to leave

  // address: "HOST:PORT" ("[::1]:8080" for IPv6); port 0 picks a free one. Errors: kConfig for an address that is none,
  // kUnavailable if it cannot be listened on.
  static Result<std::unique_ptr<AdminHttp>> start(const std::string& address, AdminPolicy policy, Handlers handlers);
  ~AdminHttp();  // closes every connection and joins the thread; no handler is called after it
  AdminHttp(const AdminHttp&) = delete;
  AdminHttp& operator=(const AdminHttp&) = delete;

  std::string address() const;  // with the real port: "127.0.0.1:43121"

 private:
  struct Impl;
  explicit AdminHttp(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
