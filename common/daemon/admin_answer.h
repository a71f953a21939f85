// The admin port's answers to requests. Separate from its sockets, so that any bytes can be tried (tests/fuzz). Pure,
// except for the handlers.
#pragma once

#include <boost/beast/http.hpp>
#include <optional>

#include "common/daemon/admin_guard.h"
#include "common/daemon/admin_http.h"

namespace tributary {

using AdminMessage = boost::beast::http::request<boost::beast::http::string_body>;
using AdminParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
using AdminResponse = boost::beast::http::response<boost::beast::http::string_body>;

inline constexpr std::size_t kAdminBuffer = 2 * AdminHttp::kMaxHeaderBytes;  // most bytes that wait to be parsed

// The bounds of a request. parser: a new one.
void begin_request(AdminParser& parser, const AdminHttp::Handlers& handlers);
AdminResponse answer_to(const AdminMessage& request, AdminGuard& guard, const AdminHttp::Handlers& handlers);
// Returns the answer to an unreadable request; none if the client has gone.
std::optional<AdminResponse> refusal_of(boost::system::error_code error);

}  // namespace tributary
