// Top-k in memory that others write: frames that change after they were found valid, residuals that change between the
// passes of a selection.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/topk.h"
#include "kernels/topk_passes.h"
#include "tests/unit/kernels/fenced.h"
#include "tests/unit/kernels/kernel_values.h"

namespace tributary::topk_changed_test {
namespace {

using namespace testing;
using kernels::kTopKGroup;
namespace passes = kernels::topk_passes;

constexpr std::size_t kElements = 2 * kTopKGroup + 1000, kKept = 300;

// A frame that ends where memory does, so that a read beyond it is seen.
struct Frame {
  Fenced<std::uint32_t> counts{kernels::topk_groups(kElements), Fence::kBehind};
  Fenced<float> values{kKept, Fence::kBehind};
  Fenced<std::uint16_t> offsets{kKept, Fence::kBehind};

  explicit Frame(std::uint32_t seed) {
    std::vector<float> residual = make_values(Values::kGradients, kElements, seed);
    std::vector<std::uint32_t> scratch(kElements);
    kernels::topk_select(residual.data(), kElements, kKept, counts.data(), values.data(), offsets.data(),
                         scratch.data());
    REQUIRE(kernels::topk_valid(counts.bytes(), offsets.bytes(), kElements, kKept));
  }
  void decode(std::size_t first, const Fenced<float>& out) const {
    kernels::topk_decode(counts.bytes(), values.bytes(), offsets.bytes(), kKept, first, out.all().size(), out.data());
  }
};

TEST_CASE("a frame whose counts grow after it was found valid is read within its bounds") {
  const Frame frame(1);
  const Fenced<float> out(128, Fence::kBehind);
  for (const std::uint32_t count : {0xffffffffu, 0x80000000u, static_cast<std::uint32_t>(kKept) + 1}) {
    std::ranges::fill(frame.counts.all(), count);
    for (const std::size_t first : {std::size_t{0}, std::size_t{128}, kTopKGroup, 2 * kTopKGroup + 128}) {
      frame.decode(first, out);
    }
  }
}

TEST_CASE("a frame whose offsets change after it was found valid is decoded within the output") {
  const Frame frame(2);
  const std::vector<std::uint16_t> sent(frame.offsets.all().begin(), frame.offsets.all().end());
  // Descending, or wherever: places before the part that is asked for, and behind it.
  const Fenced<float> before(128, Fence::kBefore), behind(128, Fence::kBehind);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    for (std::uint16_t& offset : frame.offsets.all()) offset = static_cast<std::uint16_t>(random());
    if (round == 0) std::ranges::fill(frame.offsets.all(), std::uint16_t{0});
    if (round == 1) std::ranges::reverse_copy(sent, frame.offsets.data());
    // A binary search ends at the last of these, and the next one lies far before it.
    if (round == 2) frame.offsets.all()[kKept / 2] = 1;
    for (std::size_t first = 0; first + 128 <= kElements; first += 128 * 41) {
      frame.decode(first, before);
      frame.decode(first, behind);
    }
  }
}

TEST_CASE("random bytes in the place of a frame are decoded within its bounds and the output's") {
  const Frame frame(3);
  const Fenced<float> before(256, Fence::kBefore), behind(256, Fence::kBehind);
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    for (std::uint32_t& count : frame.counts.all()) count = static_cast<std::uint32_t>(random()) >> random() % 32;
    for (std::uint16_t& offset : frame.offsets.all()) offset = static_cast<std::uint16_t>(random() >> random() % 16);
    const std::size_t first = random() % (kElements - 256) / 8 * 8;
    frame.decode(first, before);
    frame.decode(first, behind);
  }
}

// Arrays that a selection writes to, none of it longer than it must be.
struct Selection {
  static constexpr std::size_t kWanted = 200;
  Fenced<std::uint32_t> counts{kernels::topk_groups(kElements), Fence::kBehind};
  Fenced<float> values{kWanted, Fence::kBehind};
  Fenced<std::uint16_t> offsets{kWanted, Fence::kBehind};
  Fenced<std::uint32_t> scratch{kElements, Fence::kBehind};

  std::size_t take(std::vector<float>& residual, passes::Threshold threshold) {
    return passes::take(residual.data(), kElements, kWanted, threshold, counts.data(), values.data(), offsets.data());
  }
  void check_taken(std::size_t taken) const {
    std::size_t counted = 0;
    for (const std::uint32_t count : counts.all()) counted += count;
    CHECK(counted == taken);
    CHECK(taken <= kWanted);
  }
};

TEST_CASE("a residual whose large values vanish after the first pass of a selection gives a threshold all the same") {
  Selection to;
  const std::vector<float> large(kElements, 1.0f), small(kElements, 0.0f);
  const passes::Place step = passes::find_step(large.data(), kElements, Selection::kWanted);
  // Fewer of that step are there than are wanted of it: none, or some.
  passes::find_threshold(small.data(), kElements, step, to.scratch.data());
  std::vector<float> few = small;
  std::fill_n(few.begin() + 5, Selection::kWanted / 2, 1.0f);
  const passes::Threshold threshold = passes::find_threshold(few.data(), kElements, step, to.scratch.data());
  const std::size_t taken = to.take(few, threshold);
  to.check_taken(taken);
}

TEST_CASE("a residual that grows before the last pass of a selection sends no more values than the frame holds") {
  Selection to;
  std::vector<float> residual = make_values(Values::kGradients, kElements, 5);
  const passes::Place step = passes::find_step(residual.data(), kElements, Selection::kWanted);
  const passes::Threshold threshold = passes::find_threshold(residual.data(), kElements, step, to.scratch.data());
  std::ranges::fill(residual, 1e6f);
  const std::size_t taken = to.take(residual, threshold);
  CHECK(taken == Selection::kWanted);
  to.check_taken(taken);
  CHECK(kernels::topk_valid(to.counts.bytes(), to.offsets.bytes(), kElements, Selection::kWanted));
}

TEST_CASE("any three residuals in the passes of a selection keep to the frame") {
  std::mt19937 random(13);
  constexpr Values kKinds[] = {Values::kGradients, Values::kTiny, Values::kEqual, Values::kAnyBits};
  const auto residual = [&] {
    return make_values(kKinds[random() % 4], kElements, static_cast<std::uint32_t>(random()));
  };
  for (int round = 0; round < 24; ++round) {
    Selection to;
    const passes::Place step = passes::find_step(residual().data(), kElements, Selection::kWanted);
    const passes::Threshold threshold = passes::find_threshold(residual().data(), kElements, step, to.scratch.data());
    std::vector<float> last = residual();
    to.check_taken(to.take(last, threshold));
  }
}

}  // namespace
}  // namespace tributary::topk_changed_test
