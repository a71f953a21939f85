#include <doctest/doctest.h>

#include <string>

#include "common/base/quantity.h"
#include "tests/unit/expect.h"

namespace tributary::quantity_test {

namespace {

TEST_CASE("bytes are read with units of powers of 1000 and of 1024") {
  CHECK(parse_bytes("16MB") == 16e6);
  CHECK(parse_bytes("1.5GiB") == 1.5 * 1073741824);
  CHECK(parse_bytes("500") == 500.0);
  CHECK(parse_bytes("8 kb") == 8e3);
  CHECK(parse_bytes("2e9") == 2e9);
}

TEST_CASE("bandwidths are read in bits and in bytes a second") {
  CHECK(parse_bandwidth("250Mbit/s") == 31.25e6);
  CHECK(parse_bandwidth("250mbit") == 31.25e6);
  CHECK(parse_bandwidth("25Gbit/s") == 3.125e9);
  CHECK(parse_bandwidth("12.5GB/s") == 12.5e9);
  CHECK(parse_bandwidth("300 GB/s") == 300e9);
}

TEST_CASE("what is no amount is refused with the text and the way to write it") {
  for (const char* text : {"", "MB", "-1MB", "0", "16 parsecs", "1e999MB", "nan", "inf", "16MB/s"}) {
    CAPTURE(text);
    const auto bytes = parse_bytes(text);
    REQUIRE(!bytes);
    CHECK(testing::contains(bytes.error().message, "'" + std::string(text) + "'"));
    CHECK(testing::contains(bytes.error().message, "16MB"));
  }
  for (const char* text : {"", "250", "-1Gbit/s", "12.5", "1Gb it/s", "0GB/s"}) {
    CAPTURE(text);
    const auto rate = parse_bandwidth(text);
    REQUIRE(!rate);
    CHECK(testing::contains(rate.error().message, "250Mbit/s"));
  }
}

TEST_CASE("amounts are written with a fitting unit") {
  CHECK(bytes_in_words(16e6) == "16.00 MB");
  CHECK(bytes_in_words(1.785e9) == "1.785 GB");
  CHECK(bytes_in_words(0) == "0 B");
  CHECK(bandwidth_in_words(31.25e6) == "31.25 MB/s");
  CHECK(seconds_in_words(0.28007) == "280.1 ms");
  CHECK(seconds_in_words(1.12) == "1.120 s");
  CHECK(seconds_in_words(50e-6) == "50.00 us");
  CHECK(seconds_in_words(1.0) == "1.000 s");
}

}  // namespace

}  // namespace tributary::quantity_test
