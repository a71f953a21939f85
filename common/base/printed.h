// Text that people read: printf into a string, and lists of names.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {

// std::format comes with the next compilers; the attribute checks arguments against the pattern until then.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* pattern, ...);

// "1 lane", "2 lanes".
std::string counted(std::size_t count, const char* what);

// "a, b, c", with `last` before the last one; of more than kMostListed the first ones and how many more.
inline constexpr std::size_t kMostListed = 8;
std::string listed(const std::vector<std::string>& names, std::string_view last = ", ");

}  // namespace tributary
