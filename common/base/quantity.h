// Amounts with units, as people write them: "16MB", "250Mbit/s", "250ms"; and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// Each refuses text that is no positive, finite number with a unit; the message has the value and the right form.

// Bytes: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024). A number without a unit is bytes.
Result<double> parse_bytes(std::string_view text);
// Bytes per second: bit/s, Kbit/s, Mbit/s, Gbit/s, B/s, KB/s, MB/s, GB/s; "250mbit" and "12.5GB" will do. A unit is
// needed.
Result<double> parse_bandwidth(std::string_view text);

// Three or four significant digits and a fitting unit.
std::string bytes_in_words(double bytes);            // "1.785 GB"
std::string bandwidth_in_words(double bytes_per_s);  // "31.25 MB/s"
std::string seconds_in_words(double seconds);        // "280.1 ms"
// An amount of memory, in powers of 1024.
std::string memory_in_words(std::uint64_t bytes);  // "23.5 GiB"

}  // namespace tributary
