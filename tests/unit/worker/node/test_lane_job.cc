#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/node/lane_job.h"

namespace tributary::lane_job_test {
namespace {

class Output final : public WorkerLaneOutput {
 public:
  std::uint64_t now_ns() const override { return now; }
  bool send(ConnectionIndex, const DataMessage& message, std::span<const std::byte>) override {
    if (const auto* push = std::get_if<Push>(&message)) pushes.push_back(*push);
    return true;
  }
  void refused(const std::string& line) override { refusals.push_back(line); }
  void failed(LaneFailure failure) override { FAIL(failure.error.message); }

  std::uint64_t now = 1'000'000;
  std::vector<Push> pushes;
  std::vector<std::string> refusals;
};

// A node of one rank and one chunk, which has a tensor of each of two groups.
struct Node {
  Node() {
    JobConfig config{.name = "job", .optimizer = default_optimizer("adamw")};
    config.groups.emplace_back();
    config.push = EncodingId::kInt8;
    const ShardSlots slots{1, 1.0};
    NodeJobSpec spec;
    spec.view = std::make_shared<const ViewPlan>(
        ViewPlan{.plan = JobPlan::of(config),
                 .job = JobId(5),
                 .view = ViewId(2),
                 .layout = std::make_shared<const Layout>(
                     *Layout::make({{"a", {100}}, {"b", {100}, 1}}, kMinChunkBytes / sizeof(float), {&slots, 1}))});
    spec.ranks = 1;
    memory = required(NodeJob::create(std::move(spec), 1, std::make_shared<MemoryBudget>(16u << 20)));
    job = required(WorkerLaneJob::open(memory, {}, output));
    job->start();
    job->initial_values();
    answer(0);
  }
  void ready(std::size_t tensor, std::uint64_t round) {
    auto& word = const_cast<TensorWord&>(memory->tensor_words(0)[tensor]);
    word.weight.store(1);
    word.set({.lr = 0.25 / static_cast<double>(round)});
    memory->rank_words(0).say(tensor, round);
    job->scan();
    job->poll_reducer();
  }
  void answer(std::uint64_t version) {
    const std::vector<float> values(memory->layout().flat_elements(), 1.0f);
    const ChunkKey key{JobId(5), ViewId(2), NodeRank(0), ChunkIndex(0)};
    job->receive(Answer{key, Version(version), EncodingId::kFp32}, std::as_bytes(std::span(values)));
    job->publish();
  }

  Output output;
  std::shared_ptr<NodeJob> memory;
  std::unique_ptr<WorkerLaneJob> job;
};

}  // namespace

TEST_CASE("a residual that is saved at a stop says no settings, whatever the next round's tensors have said") {
  Node node;
  node.ready(0, 1);
  node.ready(1, 1);
  REQUIRE(node.output.pushes.size() == 1);
  CHECK(node.output.pushes[0].settings == HeldSettings(2, {.lr = 0.25}));
  node.answer(1);
  node.ready(1, 2);  // the other one does not come any more
  REQUIRE(node.job->keep_residuals());
  REQUIRE(node.output.pushes.size() == 2);
  CHECK(node.output.pushes[1].residual == ResidualUse::kAlone);
  CHECK(node.output.pushes[1].settings.empty());
  CHECK(node.output.refusals.empty());
}

TEST_CASE("a server's words about a chunk that the lane does not have are refused, and end nothing") {
  Node node;
  const ChunkKey other{JobId(5), ViewId(2), NodeRank(0), ChunkIndex(7)};
  node.job->receive(Ack{other, Round(1)}, {});
  node.job->receive(ErrorReply{other, Round(1), ErrorCode::kWrongRound, "wrong"}, {});
  REQUIRE(node.output.refusals.size() == 2);
  CHECK(node.output.refusals[1] == "a server sent something about chunk 7, which is not this lane's");
  CHECK_FALSE(node.job->failed());
}

}  // namespace tributary::lane_job_test
