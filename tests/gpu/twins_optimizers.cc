// Optimizer steps.
#include <memory>
#include <set>

#include "kernels/step/cuda_optimizer.h"
#include "kernels/step/optimizer.h"
#include "kernels/step/optimizers.h"
#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

using namespace kernels;

struct Variant {
  const char* name;
  const char* optimizer;
  OptimizerOptions options;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (double decay : {0.0, 0.01}) {
    const auto add = [&](const char* name, const char* optimizer,
                         std::vector<std::pair<std::string_view, double>> values = {}) {
      values.emplace_back("weight_decay", decay);
      all.push_back({name, optimizer, options_of(optimizer, values)});
    };
    add("SGD", "sgd");
    add("Adam", "adam");
    add("AdamW", "adamw");
    add("Lion", "lion");
    add("Adam that moves more than half-way", "adam", {{"beta1", 0.3}});
    add("SGD with momentum", "sgd", {{"momentum", 0.9}, {"dampening", 0.1}});
    add("SGD with Nesterov's momentum", "sgd", {{"momentum", 0.9}, {"nesterov", 1.0}});
    add("Adagrad", "adagrad", {{"lr_decay", 0.001}, {"initial_accumulator", 0.1}});
    add("Mean", "mean");
  }
  return all;
}

// Parameters and state on one side.
template <class Array>
BlockArgs block_of(std::size_t count, Array grad, Array param, Array param_out, Array (&state)[2], int slots) {
  BlockArgs block{.count = count, .grad = grad, .grad_scale = 1.0f / 96.0f, .param_in = param, .param_out = param_out};
  for (int slot = 0; slot < slots; ++slot) block.state_in[slot] = block.state_out[slot] = state[slot];
  return block;
}

void check_steps(const Variant& variant, std::size_t count, Values kind) {
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(variant.optimizer, variant.options);
  std::vector<float> param = make_values(Values::kGradients, count, 20), param_out(count), state[2];
  for (int slot = 0; slot < 2; ++slot) {
    state[slot].assign(count, slot < optimizer->slots() ? optimizer->initial_state(slot) : 0.0f);
  }
  const DeviceArray<float> device_param(param), device_out(count), device_state0(state[0]), device_state1(state[1]);
  float* at[2] = {state[0].data(), state[1].data()};
  float* device_at[2] = {device_state0.get(), device_state1.get()};
  std::uint32_t seed = 21;
  for (std::uint64_t t : {1, 2, 1000}) {
    CAPTURE(t);
    const StepScalars scalars = optimizer->scalars(t, 0.01);
    const std::vector<float> grad = make_values(kind, count, seed++);
    const DeviceArray<float> device_grad(grad);
    // Step 2 puts the parameters elsewhere, the others replace them.
    const bool in_place = t != 2;
    float* const grad_at = const_cast<float*>(grad.data());
    optimizer->step(scalars, block_of(count, grad_at, param.data(), in_place ? param.data() : param_out.data(), at,
                                      optimizer->slots()));
    cuda::optimizer_step(*optimizer, scalars,
                         block_of(count, device_grad.get(), device_param.get(),
                                  in_place ? device_param.get() : device_out.get(), device_at, optimizer->slots()),
                         stream());
    check_equal("parameters", in_place ? device_param.read() : device_out.read(), in_place ? param : param_out);
    check_equal("first state", device_state0.read(), state[0]);
    check_equal("second state", device_state1.read(), state[1]);
  }
}

TEST_CASE("each formula of the list has a variant") {
  std::set<std::size_t> formulae;
  for (const Variant& variant : variants()) {
    formulae.insert(make_optimizer(variant.optimizer, variant.options)->formula());
  }
#define TRIBUTARY_COUNT(F) +1
  CHECK(formulae.size() == 0 TRIBUTARY_OPTIMIZERS(TRIBUTARY_COUNT));
#undef TRIBUTARY_COUNT
}

TEST_CASE("CUDA optimizer steps have the bits of the CPU's") {
  in_all_ways([] {
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      for (std::size_t count : sizes()) {
        CAPTURE(count);
        check_steps(variant, count, kAllValues[count % 6]);
      }
    }
  });
}

TEST_CASE("CUDA optimizer steps have the bits of the CPU's for every kind of values") {
  in_all_ways([] {
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      for (Values kind : kAllValues) {
        CAPTURE(static_cast<int>(kind));
        check_steps(variant, 4096 + 2500, kind);
      }
    }
  });
}

}  // namespace
}  // namespace tributary::twins
