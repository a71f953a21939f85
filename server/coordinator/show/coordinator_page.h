// The page of the daemon that has the coordinator (GET /): coordinator_json() for a person with a browser.
// The facts are HTML, so that nothing but a browser is needed; the script of server/coordinator/show/page.html renews them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tributary {

// server/coordinator/show/page.html, as CMake has put it into the program: with {{main}} and {{nonce}}.
extern const std::string_view kPageTemplate;

// nonce: of the style and the script, as the answer's Content-Security-Policy has it.
std::string coordinator_page(const nlohmann::ordered_json& coordinator, const std::string& nonce);
// The page of a server that could have the coordinator and has not: why, in words.
std::string standby_page(const std::string& why, const std::string& nonce);

}  // namespace tributary
