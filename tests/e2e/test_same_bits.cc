// The digest of the final parameters does not depend on how a job is spread over processes.
#include "tests/e2e/e2e.h"

namespace tributary::e2e::same_bits_test {
namespace {

// Four ranks each; together they vary everything that must not matter.
const std::vector<Spread> kSpreads = {
    {1, 4, 1, 1, 0, Transport::kTcp},     {2, 2, 2, 2, 0, Transport::kTcp},    {4, 1, 3, 1, 4096, Transport::kTcp},
    {2, 2, 1, 2, 32768, Transport::kTcp}, {1, 4, 3, 2, 8192, Transport::kIpc}, {4, 1, 2, 1, 16384, Transport::kIpc},
    {1, 4, 1, 1, 0, Transport::kShm},     {2, 2, 2, 2, 8192, Transport::kShm}, {4, 1, 2, 1, 4096, Transport::kShm},
};

void check_all(const char* optimizer) {
  const TempDir dir;
  Job job{.name = "bits", .optimizer = optimizer};
  const std::string reference = standalone_digest(dir, write_job(dir, job), 4);
  CHECK(reference.size() == 32);
  for (const Spread& s : kSpreads) {
    CAPTURE(s.nodes);
    CAPTURE(s.servers);
    CAPTURE(s.lanes);
    CAPTURE(s.chunk_bytes);
    job.chunk_bytes = s.chunk_bytes;
    const auto all = trained(spread(dir / "run", s), write_job(dir, job));
    CHECK(all[0].at("digest") == reference);
    CHECK(all[0].at("rounds") == job.rounds);
    CHECK(all[0].at("stopped") == false);
    CHECK(all[0].at("bytes_pushed").get<std::uint64_t>() > 0);
  }
}

TEST_CASE("AdamW ends in the same bits on every topology, with any servers, lanes and chunks, and standalone") {
  check_all(kAdamW);
}

TEST_CASE(
    "SGD with momentum ends in the same bits on every topology, with any servers, lanes and chunks, and standalone") {
  check_all(kMomentum);
}

}  // namespace
}  // namespace tributary::e2e::same_bits_test
