#include "server/coordinator/cluster/job_record.h"

#include <algorithm>

#include "common/base/checksum.h"

namespace tributary {

std::uint64_t members_hash(const std::vector<std::uint32_t>& nodes, ViewId since) {
  Checksum64 sum;
  sum.add(nodes.data(), nodes.size() * sizeof(nodes[0]));
  const std::uint64_t words = since.value;  // ends with a 0, as no list of nodes does
  if (words != 0) sum.add(&words, sizeof words);
  return sum.value();
}

std::set<std::uint16_t> shards_of(const JobRecord& record) {
  std::set<std::uint16_t> shards;
  for (const ChunkOwner& owner : record.owners) shards.insert(owner.shard.value);
  return shards;
}

bool has_chunks(const JobRecord& record, std::uint16_t server) {
  return std::ranges::find(record.owners, ShardIndex(server), &ChunkOwner::shard) != record.owners.end();
}

}  // namespace tributary
