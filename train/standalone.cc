#include "train/standalone.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/assert.h"
#include "common/base/layout.h"
#include "common/config/gate_rules.h"
#include "common/config/optimizer_config.h"
#include "common/config/schedule.h"
#include "common/files/digest.h"
#include "common/math/encoding.h"
#include "common/math/fused_step.h"
#include "kernels/tree_sum.h"
#include "train/aligned_floats.h"
#include "train/finite.h"
#include "train/rank_compute.h"

namespace tributary::train {

namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

// Pointers to the tensors inside a flat buffer.
template <class T>
std::vector<T*> tensor_pointers(const Layout& layout, T* flat) {
  std::vector<T*> pointers;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) pointers.push_back(flat + layout.tensor_offset(t));
  return pointers;
}

// State of nodes and servers: master parameters, optimizer state, and the parameters as ranks see them after the wire.
class Model {
 public:
  Model(const JobConfig& job, Layout layout, std::shared_ptr<const kernels::Optimizer> optimizer, std::uint32_t ranks,
        std::uint32_t nodes)
      : job_(job),
        layout_(std::move(layout)),
        optimizer_(std::move(optimizer)),
        push_(make_encoding(job.push)),
        pull_(make_encoding(job.pull)),
        ranks_per_node_(ranks / nodes),
        master_(layout_.flat_elements()),
        seen_(layout_.flat_elements()),
        node_sum_(layout_.chunk_elements()),
        answer_(pull_->bytes(layout_.chunk_elements())),
        frames_(nodes, std::vector<std::byte>(push_->bytes(layout_.chunk_elements()))),
        weights_(nodes),
        scratch_(push_->scratch_words(layout_.chunk_elements())),
        sum_(has_gate(job) ? layout_.flat_elements() : 0),
        gate_(first_gate_state(job.gate)) {
    for (std::uint32_t node = 0; node < nodes && push_->keeps_residual(); ++node) {
      residuals_.emplace_back(layout_.flat_elements());
    }
    for (int slot = 0; slot < optimizer_->slots(); ++slot) {
      states_.emplace_back(layout_.flat_elements());
      std::ranges::fill(states_.back().span(), optimizer_->initial_state(slot));
    }
    for (std::uint32_t r = 0; r < ranks; ++r) gradients_.emplace_back(layout_.flat_elements());
  }

  const Layout& layout() const { return layout_; }
  std::vector<const float*> seen() const { return tensor_pointers(layout_, seen_.data()); }
  std::vector<float*> gradient(std::uint32_t rank) { return tensor_pointers(layout_, gradients_[rank].data()); }

  void initialise(const MlpShape& shape) {
    const std::vector<float*> tensors = tensor_pointers(layout_, master_.data());
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      shape.initialise(job_.train.seed, t, {tensors[t], layout_.tensors()[t].elements()});
    }
    if (pull_->is_delta()) {  // the first answer is the estimate itself, which begins as the parameters
      std::ranges::copy(master_.span(), seen_.data());
      return;
    }
    for_each_chunk([&](ChunkRange chunk) {
      pull_->encode(master_.data() + chunk.begin, chunk.elements, 0, chunk.elements, nullptr, answer_.data());
      pull_->apply(answer_.data(), chunk.elements, seen_.data() + chunk.begin);
    });
  }

  // Applies the gradients of all ranks, chunk by chunk as servers do: encodings may depend on where a chunk begins.
  // weights: every rank's samples.
  void step(std::span<const std::uint64_t> weights) {
    std::uint64_t weight = 0;
    std::ranges::fill(weights_, 0);
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      weights_[rank / ranks_per_node_] += weights[rank];
      weight += weights[rank];
    }
    if (has_gate(job_)) return step_through_gate(weight);
    ++step_;
    for_each_chunk([&](ChunkRange chunk) {
      push(chunk);
      apply(chunk, frames(), *push_, static_cast<float>(1.0 / static_cast<double>(weight)));
    });
  }

  // The decision about the last round; before the first one, the initial decision.
  const GateDecision& gate() const { return gate_; }

 private:
  // As server/shard/shard_gate.cc: the sums of all chunks, one decision, then the steps.
  void step_through_gate(std::uint64_t weight) {
    std::vector<GateFacts> facts;
    for_each_chunk([&](ChunkRange chunk) {
      push(chunk);
      FusedArgs args;
      const std::vector<PushFrame> all = frames();
      args.elements = chunk.elements;
      args.frames = all;
      args.push = push_.get();
      float* sum = sum_.data() + chunk.begin;
      fused_sum(args, sum);
      facts.push_back(gate_facts({sum, chunk.elements}, weight));
    });
    gate_ = decide_gate(job_.gate, gate_, facts);
    if (!gate_.applies()) return;
    ++step_;
    const float scale = gate_scale(gate_, weight);
    for_each_chunk([&](ChunkRange chunk) {
      const PushFrame sum{reinterpret_cast<const std::byte*>(sum_.data() + chunk.begin)};
      apply(chunk, {&sum, 1}, encoding_for(EncodingId::kFp32), scale);
    });
  }

  // Scalars of the step that is being taken.
  kernels::StepScalars scalars() const {
    return optimizer_->scalars(step_, scheduled_lr(server_schedule(job_), job_.optimizer.lr, step_));
  }

  std::vector<PushFrame> frames() const {
    std::vector<PushFrame> pushed;
    for (std::size_t node = 0; node < frames_.size(); ++node) pushed.push_back({frames_[node].data(), weights_[node]});
    return pushed;
  }

  // Makes every node's frame of the chunk.
  void push(ChunkRange chunk) {
    std::vector<const float*> inputs(ranks_per_node_);
    for (std::size_t node = 0; node < frames_.size(); ++node) {
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = gradients_[node * ranks_per_node_ + i].data() + chunk.begin;
      }
      kernels::tree_sum(inputs, chunk.elements, node_sum_.data());
      const float scale = push_->push_scale(weights_[node]);
      if (scale != 1.0f) kernels::scale(node_sum_.data(), chunk.elements, scale);
      float* residual = residuals_.empty() ? nullptr : residuals_[node].data() + chunk.begin;
      push_->encode(node_sum_.data(), chunk.elements, 0, chunk.elements, residual, frames_[node].data());
      push_->finish(chunk.elements, residual, frames_[node].data(), scratch_);
    }
  }

  void apply(ChunkRange chunk, std::span<const PushFrame> frames, const Encoding& encoding, float scale) {
    FusedArgs args;
    args.elements = chunk.elements;
    args.frames = frames;
    args.push = &encoding;
    args.scale = scale;
    args.param_in = args.param_out = master_.data() + chunk.begin;
    for (std::size_t slot = 0; slot < states_.size(); ++slot) {
      args.state_in[slot] = args.state_out[slot] = states_[slot].data() + chunk.begin;
    }
    args.pull = pull_.get();
    args.answer = answer_.data();
    // The estimate of a delta encoding is what the ranks see.
    if (pull_->is_delta()) args.estimate_in = args.estimate_out = seen_.data() + chunk.begin;
    fused_step(*optimizer_, scalars(), args);
    if (!pull_->is_delta()) pull_->apply(answer_.data(), chunk.elements, seen_.data() + chunk.begin);
  }

  template <class Function>
  void for_each_chunk(Function&& function) {
    for (std::uint32_t c = 0; c < layout_.chunks(); ++c) function(layout_.chunk(ChunkIndex(c)));
  }

  const JobConfig& job_;
  Layout layout_;
  std::shared_ptr<const kernels::Optimizer> optimizer_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::uint32_t ranks_per_node_;
  AlignedFloats master_, seen_, node_sum_;
  std::vector<AlignedFloats> states_, gradients_;  // by slot; by rank
  std::vector<std::byte> answer_;
  std::vector<std::vector<std::byte>> frames_;  // by node
  std::vector<std::uint64_t> weights_;          // likewise: samples of the round
  std::vector<std::uint32_t> scratch_;
  std::vector<AlignedFloats> residuals_;  // by node; none if the push encoding keeps none
  std::uint64_t step_ = 0;                // rounds applied
  AlignedFloats sum_;                     // with a gate: of all frames
  GateDecision gate_;
};

Status check(const StandaloneOptions& options) {
  if (options.ranks == 0 || options.ranks > kMaxStandaloneRanks) {
    return fail(ErrorCode::kTopology,
                "--ranks " + std::to_string(options.ranks) + ": use 1 to " + std::to_string(kMaxStandaloneRanks));
  }
  if (options.nodes == 0 || options.ranks % options.nodes != 0) {
    return fail(ErrorCode::kTopology, "--nodes " + std::to_string(options.nodes) + " does not divide --ranks " +
                                          std::to_string(options.ranks) + "; every node has the same number of ranks");
  }
  return {};
}

}  // namespace

Result<RunSummary> train_standalone(const StandaloneOptions& options, const ImageSet& training, const ImageSet* test,
                                    ProgressBar* bar) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  JobConfig whole = options.job;
  whole.sync = {};  // no rank is late
  Result<RankCompute> compute = RankCompute::make(whole, training, options.ranks, options.ranks);
  if (!compute) return tl::unexpected(compute.error());
  const Sampler& sampler = compute->sampler();
  const JobConfig& job = options.job;
  std::shared_ptr<const kernels::Optimizer> optimizer = make_optimizer(job.optimizer);
  if (!optimizer) {
    return fail(ErrorCode::kConfig,
                "optimizer.name = \"" + job.optimizer.name + "\" " + must_be_one_of(kernels::optimizer_names()));
  }
  const ShardSlots one_server;
  std::uint64_t chunk_elements = job.chunk_bytes / sizeof(float);
  if (chunk_elements == 0) {
    std::uint64_t flat = 0;
    for (const TensorSpec& tensor : compute->shape().tensors()) flat += tensor.elements() + kTensorAlign;
    chunk_elements = default_chunk_elements(flat, {&one_server, 1}, 1, true);
  }
  Result<Layout> layout = Layout::make(compute->shape().tensors(), chunk_elements, {&one_server, 1});
  if (!layout) return tl::unexpected(layout.error());
  Model model(job, std::move(*layout), std::move(optimizer), options.ranks, options.nodes);
  model.initialise(compute->shape());

  RunSummary summary;
  summary.job = job.name;
  summary.world_size = options.ranks;
  summary.nodes = options.nodes;
  summary.standalone = true;
  for (const TensorSpec& tensor : model.layout().tensors()) summary.model_bytes += tensor.elements() * sizeof(float);
  summary.last_round = last_round(job.train, sampler).value;
  const std::vector<const float*> parameters = model.seen();
  for (Round round(1); round.value <= summary.last_round; round = round.next()) {
    RoundReport report{.complete = round.value, .round = round.value, .rounds = summary.last_round};
    std::vector<std::uint64_t> weights;
    if ((round.value - 1) % sampler.rounds_per_epoch() == 0) summary.train = {};
    const Clock::time_point begin = Clock::now();
    const auto loss_scale = [&model] { return model.gate().loss_scale; };
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      const std::vector<float*> gradients = model.gradient(rank);
      compute->bind({.parameters = parameters, .gradients = gradients});
      report.stats += *compute->gradient(round, Rank(rank), nullptr, nullptr, rank, loss_scale);
      report.samples_sum += compute->computed_sum();
      weights.push_back(compute->weight(round, Rank(rank)));
    }
    if (summary.not_finite.empty() && !has_gate(job)) summary.not_finite = not_finite(round, report.stats.loss_sum);
    report.split.compute_ns = ns_since(begin);
    const Clock::time_point computed = Clock::now();
    model.step(weights);
    if (has_gate(job)) {
      report.gate = model.gate();
      summary.gate.add(report.gate);
    }
    report.split.reduce_ns = ns_since(computed);
    report.global_samples = report.stats.samples;

    const bool last = round.value == summary.last_round;
    if (test != nullptr && (last || evaluates_after(job.train, sampler, round))) {
      report.test = summary.test = compute->evaluate(*test);
    }
    summary.rounds = round.value;
    summary.rounds_here += 1;
    summary.samples_here += report.global_samples;
    summary.train += report.stats;
    summary.split += report.split;
    if (bar != nullptr) bar->round(report, sampler.rounds_per_epoch());
  }
  summary.digest = parameters_digest(model.layout().tensors(), parameters);
  if (summary.not_finite.empty()) summary.not_finite = not_finite(model.layout().tensors(), parameters);
  return summary;
}

}  // namespace tributary::train
