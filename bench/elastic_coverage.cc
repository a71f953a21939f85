#include "bench/elastic_coverage.h"

namespace tributary::bench {

void ElasticCoverage::take(const ProgressReport& report) {
  if (report.round == 0 || report.rank >= report.world_size) return;
  sums_[report.round][{report.world_size, report.resumed}][report.rank] = report.samples_sum;
}

nlohmann::ordered_json ElasticCoverage::counts() {
  std::uint64_t whole = 0, wrong = 0, twice = 0;
  for (const auto& [round, views] : sums_) {
    const std::uint64_t expected = whole_sum(round);
    bool some_whole = false, some_wrong = false;
    for (const auto& [view, ranks] : views) {
      if (ranks.size() != view.world_size) continue;
      std::uint64_t sum = 0;
      for (const auto& [rank, of_rank] : ranks) sum += of_rank;
      (sum == expected ? some_whole : some_wrong) = true;
    }
    whole += some_whole ? 1 : 0;
    wrong += some_wrong ? 1 : 0;
    twice += views.size() > 1 ? 1 : 0;
  }
  return {
      {"rounds_whole", whole}, {"rounds_wrong", wrong}, {"rounds_seen", sums_.size()}, {"rounds_dealt_twice", twice}};
}

std::uint64_t ElasticCoverage::samples(std::uint64_t after, std::uint64_t to) const {
  std::uint64_t sum = 0;
  for (std::uint64_t round = after + 1; round <= to; ++round) sum += whole_.batch_size(Round(round));
  return sum;
}

std::uint64_t ElasticCoverage::whole_sum(std::uint64_t round) {
  std::uint64_t sum = 0;
  for (std::uint32_t step = 0; step < whole_.steps(Round(round)); ++step) {
    sum += train::samples_sum(whole_.share(Round(round), Rank(0), step));
  }
  return sum;
}

}  // namespace tributary::bench
