// printf into a string, for text that people read.
#pragma once

#include <string>

namespace tributary {

// std::format comes with the next compilers; the attribute checks arguments against the pattern until then.
[[gnu::format(printf, 1, 2)]] std::string printed(const char* pattern, ...);

}  // namespace tributary
