#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/step/optimizer.h"
#include "kernels/step/optimizers.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::optimizers_test {

namespace {

using namespace kernels;

// The generator of scripts/make_optimizer_golden.py: multiples of 2^-23 in [-1, 1), exact in float.
class Lcg {
 public:
  explicit Lcg(std::uint32_t seed) : state_(seed) {}
  float next() {
    state_ = state_ * 1664525u + 1013904223u;
    return std::ldexp(static_cast<float>(static_cast<std::int32_t>(state_ >> 8) - (1 << 23)), -23);
  }

 private:
  std::uint32_t state_;
};

std::vector<float> initial_parameters(std::size_t elements) {
  Lcg lcg(1);
  std::vector<float> params(elements);
  for (std::size_t i = 0; i < elements; ++i) params[i] = std::ldexp(lcg.next(), 1 - static_cast<int>(i % 4));
  return params;
}

std::vector<std::vector<float>> gradients(std::size_t elements, std::size_t steps) {
  Lcg lcg(2);
  std::vector<std::vector<float>> rows(steps, std::vector<float>(elements));
  for (std::size_t t = 1; t <= steps; ++t) {
    for (std::size_t i = 0; i < elements; ++i) rows[t - 1][i] = std::ldexp(lcg.next(), -static_cast<int>(i % 5));
    if (t <= 10) rows[t - 1][3] = 0.0f;
    rows[t - 1][5] = 0.0f;
  }
  return rows;
}

// One optimizer with its state.
struct Training {
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> params;
  std::vector<std::vector<float>> state;
  Training(std::string_view name, const OptimizerOptions& options, std::vector<float> initial)
      : optimizer(make_optimizer(name, options)), params(std::move(initial)) {
    REQUIRE(optimizer);
    for (int slot = 0; slot < optimizer->slots(); ++slot) {
      state.emplace_back(params.size(), optimizer->initial_state(slot));
    }
  }
  void step(std::uint64_t t, double lr, const std::vector<float>& grad) {
    BlockArgs block;
    block.count = params.size();
    block.grad = grad.data();
    block.param_in = block.param_out = params.data();
    for (std::size_t slot = 0; slot < state.size(); ++slot) {
      block.state_in[slot] = block.state_out[slot] = state[slot].data();
    }
    optimizer->step(optimizer->scalars(t, lr), block);
  }
};

OptimizerOptions options_from(const std::string& optimizer, const nlohmann::json& json) {
  std::vector<std::pair<std::string_view, double>> values = {{"weight_decay", 0.0}};
  for (const auto& [key, value] : json.items())
    values.emplace_back(key, value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>());
  return options_of(optimizer, values);
}

TEST_CASE("every optimizer that PyTorch has follows it to 1e-6 over 100 steps") {
  std::ifstream file(TRIBUTARY_SOURCE_DIR "/tests/data/optimizers_golden.json");
  REQUIRE(file.is_open());
  const nlohmann::json golden = nlohmann::json::parse(file);
  const std::size_t elements = golden["elements"], steps = golden["steps"];
  REQUIRE(steps == 100);
  const std::vector<std::vector<float>> rows = gradients(elements, steps);
  std::vector<std::string> seen;
  for (const nlohmann::json& c : golden["cases"]) {
    const std::string optimizer = c["optimizer"], name = c["name"];
    CAPTURE(name);
    Training training(optimizer, options_from(optimizer, c["options"]), initial_parameters(elements));
    // An error counts relative to the largest value that the parameter has had so far: one that crosses zero keeps the
    // rounding errors of the additions that took it there, in PyTorch as here. Away from such crossings the plain
    // relative error must be as small: at least 95 of 100 values are.
    std::vector<double> largest(training.params.begin(), training.params.end());
    double worst = 0.0;
    std::size_t plainly_close = 0;
    for (std::size_t t = 1; t <= steps; ++t) {
      training.step(t, c["lr"], rows[t - 1]);
      std::istringstream words(c["parameters"][t - 1].get<std::string>());
      words >> std::hex;
      for (std::size_t i = 0; i < elements; ++i) {
        std::uint32_t bits = 0;
        words >> bits;
        REQUIRE_FALSE(words.fail());
        const double expected = std::bit_cast<float>(bits);
        largest[i] = std::max(std::fabs(largest[i]), std::fabs(expected));
        const double difference = std::fabs(training.params[i] - expected), error = difference / largest[i];
        plainly_close += difference <= 1e-6 * std::fabs(expected);
        if (!(error <= 1e-6)) {
          CAPTURE(t);
          CAPTURE(i);
          CAPTURE(expected);
          CHECK(error <= 1e-6);
        }
        worst = std::max(worst, error);
      }
    }
    MESSAGE(name << ": largest relative error " << worst);
    CHECK(worst <= 1e-6);
    CHECK(100 * plainly_close >= 95 * steps * elements);
    seen.push_back(optimizer);
  }
  for (const std::string& optimizer : testing::stepping_optimizers()) {
    // PyTorch has no Lion.
    CHECK_MESSAGE((optimizer == "lion" || std::count(seen.begin(), seen.end(), optimizer) >= 1), optimizer);
  }
}

TEST_CASE("Lion follows its paper's algorithm, computed in double precision, over 100 steps") {
  constexpr std::size_t kElements = 17, kSteps = 100;
  const std::vector<std::vector<float>> rows = gradients(kElements, kSteps);
  for (double weight_decay : {0.0, 0.25}) {
    // All exact in float, so that nothing but the operations can round.
    constexpr double kBeta1 = 0.875, kBeta2 = 0.984375;
    const auto options = options_of("lion", {{"beta1", kBeta1}, {"beta2", kBeta2}, {"weight_decay", weight_decay}});
    constexpr double kLr = 0.00390625;
    Training training("lion", options, initial_parameters(kElements));
    std::vector<double> theta(training.params.begin(), training.params.end()), momentum(kElements, 0.0);
    std::vector<double> largest(kElements, 0.0);
    for (std::size_t t = 1; t <= kSteps; ++t) {
      training.step(t, kLr, rows[t - 1]);
      for (std::size_t i = 0; i < kElements; ++i) {
        const double g = rows[t - 1][i];
        largest[i] = std::max(largest[i], std::fabs(theta[i]));
        const double c = kBeta1 * momentum[i] + (1 - kBeta1) * g;
        const double update = c > 0 ? 1.0 : c < 0 ? -1.0 : 0.0;
        theta[i] -= kLr * (update + weight_decay * theta[i]);
        momentum[i] = kBeta2 * momentum[i] + (1 - kBeta2) * g;
        CAPTURE(t);
        CAPTURE(i);
        REQUIRE(std::fabs(training.params[i] - theta[i]) <= 1e-6 * largest[i]);
        REQUIRE(std::fabs(training.state[0][i] - momentum[i]) <= 1e-6);
      }
    }
  }
}

// The formulae, one element at a time, in the operations' order of the kernels' comments.
using Element = std::vector<float>;  // parameter, then state
void scalar_step(std::string_view name, const OptimizerOptions& o, std::uint64_t t, double lr, float g, Element& e) {
  float& p = e[0];
  const auto value = [&](std::string_view key) { return o.own[optimizer_kind(name)->place(key)]; };
  if (name == "sgd") {
    if (o.weight_decay != 0) g = g + float(o.weight_decay) * p;
    if (value("momentum") != 0) {
      e[1] = t == 1 ? g : float(value("momentum")) * e[1] + float(1 - value("dampening")) * g;
      g = value("nesterov") != 0 ? g + float(value("momentum")) * e[1] : e[1];
    }
    p = p - float(lr) * g;
  } else if (name == "adagrad") {
    if (o.weight_decay != 0) g = g + float(o.weight_decay) * p;
    e[1] = e[1] + g * g;
    p = p - float(lr / (1 + double(t - 1) * value("lr_decay"))) * g / (std::sqrt(e[1]) + float(value("eps")));
  } else if (name == "lion") {
    const float u = float(value("beta1")) * e[1] + float(1 - value("beta1")) * g;
    p = p * float(1 - lr * o.weight_decay) - float(lr) * (u > 0 ? 1.0f : u < 0 ? -1.0f : 0.0f);
    e[1] = float(value("beta2")) * e[1] + float(1 - value("beta2")) * g;
  } else if (name == "mean") {
    p = g;
  } else {
    REQUIRE(name.starts_with("adam"));
    if (name == "adam" && o.weight_decay != 0) g = g + float(o.weight_decay) * p;
    if (name == "adamw") p = p * float(1 - lr * o.weight_decay);
    const float weight = float(1 - value("beta1"));
    e[1] = weight < 0.5f ? e[1] + weight * (g - e[1]) : g - (g - e[1]) * (1 - weight);
    e[2] = float(value("beta2")) * e[2] + float(1 - value("beta2")) * g * g;
    const double correction1 = 1 - std::pow(value("beta1"), double(t)),
                 correction2 = 1 - std::pow(value("beta2"), double(t));
    const float denominator = std::sqrt(e[2]) * float(1 / std::sqrt(correction2)) + float(value("eps"));
    p = p - float(lr / correction1) * e[1] / denominator;
  }
}

std::vector<std::pair<std::string, OptimizerOptions>> variants() {
  using Values = std::vector<std::pair<std::string_view, double>>;
  const Values plain = {{"weight_decay", 0.0}}, decayed = {{"weight_decay", 0.05}};
  const Values nesterov = {{"momentum", 0.9}, {"nesterov", 1.0}, {"weight_decay", 0.01}};
  const Values dampened = {{"momentum", 0.8}, {"dampening", 0.25}};
  const Values small_beta1 = {{"beta1", 0.3}, {"weight_decay", 0.1}};
  const Values accumulating = {{"weight_decay", 0.05}, {"lr_decay", 0.1}, {"initial_accumulator", 0.5}};
  std::vector<std::pair<std::string, OptimizerOptions>> all;
  for (const auto& [name, values] : {std::pair{"sgd", plain},
                                     {"sgd", decayed},
                                     {"sgd", nesterov},
                                     {"sgd", dampened},
                                     {"adam", plain},
                                     {"adam", decayed},
                                     {"adam", small_beta1},
                                     {"adamw", decayed},
                                     {"adamw", small_beta1},
                                     {"adagrad", plain},
                                     {"adagrad", accumulating},
                                     {"lion", plain},
                                     {"lion", decayed},
                                     {"mean", plain}}) {
    all.emplace_back(name, options_of(name, values));
  }
  return all;
}

TEST_CASE("each formula of the list has a variant, and each name makes its optimizer") {
  std::set<std::size_t> formulae;
  for (const auto& [name, options] : variants()) {
    const auto optimizer = make_optimizer(name, options);
    formulae.insert(optimizer->formula());
    CHECK(optimizer->name() == name);
  }
#define TRIBUTARY_COUNT(F) +1
  CHECK(formulae.size() == 0 TRIBUTARY_OPTIMIZERS(TRIBUTARY_COUNT));
#undef TRIBUTARY_COUNT
}

TEST_CASE("the vectorised steps give the bits of the formulae taken one element at a time") {
  constexpr std::size_t kElements = 1003, kSteps = 12;
  for (const auto& [name, options] : variants()) {
    CAPTURE(name);
    Training training(name, options, initial_parameters(kElements));
    std::vector<Element> elements(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      elements[i] = {training.params[i]};
      for (const std::vector<float>& slot : training.state) elements[i].push_back(slot[i]);
    }
    const std::vector<std::vector<float>> rows = gradients(kElements, kSteps);
    for (std::size_t t = 1; t <= kSteps; ++t) {
      const double lr = 0.01 / static_cast<double>(t);
      training.step(t, lr, rows[t - 1]);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kElements; ++i) {
        scalar_step(name, options, t, lr, rows[t - 1][i], elements[i]);
        wrong += std::memcmp(&training.params[i], &elements[i][0], 4) != 0;
        for (std::size_t slot = 0; slot < training.state.size(); ++slot) {
          wrong += std::memcmp(&training.state[slot][i], &elements[i][slot + 1], 4) != 0;
        }
      }
      CAPTURE(t);
      REQUIRE(wrong == 0);
    }
  }
}

TEST_CASE("a step gives the same bits in any split into blocks, at any alignment, in place and out of place") {
  constexpr std::size_t kElements = 517;
  const std::vector<float> grad = gradients(kElements, 1)[0];
  for (const auto& [name, options] : variants()) {
    Training whole(name, options, initial_parameters(kElements));
    for (std::vector<float>& slot : whole.state) std::fill(slot.begin(), slot.end(), 0.125f);
    const Training start(name, options, initial_parameters(kElements));
    whole.step(2, 0.01, grad);
    const StepScalars scalars = whole.optimizer->scalars(2, 0.01);
    for (std::size_t piece : {1, 3, 16, 100, 517}) {
      for (bool in_place : {true, false}) {
        CAPTURE(name);
        CAPTURE(piece);
        CAPTURE(in_place);
        std::vector<float> params = start.params;
        std::vector<float> params_out = in_place ? params : std::vector<float>(kElements, 7.0f);
        std::vector<std::vector<float>> state(start.state.size(), std::vector<float>(kElements, 0.125f));
        std::vector<std::vector<float>> state_out = state;
        for (std::size_t first = 0; first < kElements; first += piece) {
          BlockArgs block{.count = std::min(piece, kElements - first),
                          .grad = grad.data() + first,
                          .param_in = (in_place ? params_out : params).data() + first,
                          .param_out = params_out.data() + first};
          for (std::size_t slot = 0; slot < state.size(); ++slot) {
            block.state_in[slot] = (in_place ? state_out : state)[slot].data() + first;
            block.state_out[slot] = state_out[slot].data() + first;
          }
          whole.optimizer->step(scalars, block);
        }
        CHECK(std::memcmp(params_out.data(), whole.params.data(), kElements * 4) == 0);
        for (std::size_t slot = 0; slot < state.size(); ++slot) {
          CHECK(std::memcmp(state_out[slot].data(), whole.state[slot].data(), kElements * 4) == 0);
        }
      }
    }
  }
}

TEST_CASE("grad_scale multiplies the gradient before anything else sees it") {
  constexpr std::size_t kElements = 203;
  std::vector<float> grad = gradients(kElements, 1)[0];
  for (const auto& [name, options] : variants()) {
    CAPTURE(name);
    Training scaled(name, options, initial_parameters(kElements)), folded(name, options, initial_parameters(kElements));
    std::vector<float> product = grad;
    for (float& g : product) g *= 1.0f / 48.0f;
    scaled.step(1, 0.01, product);
    BlockArgs block;
    block.count = kElements;
    block.grad = grad.data();
    block.grad_scale = 1.0f / 48.0f;
    block.param_in = block.param_out = folded.params.data();
    for (std::size_t slot = 0; slot < folded.state.size(); ++slot) {
      block.state_in[slot] = block.state_out[slot] = folded.state[slot].data();
    }
    folded.optimizer->step(folded.optimizer->scalars(1, 0.01), block);
    CHECK(std::memcmp(scaled.params.data(), folded.params.data(), kElements * 4) == 0);
    for (std::size_t slot = 0; slot < folded.state.size(); ++slot) {
      CHECK(std::memcmp(scaled.state[slot].data(), folded.state[slot].data(), kElements * 4) == 0);
    }
  }
}

TEST_CASE("optimizers have the state that their formulae need") {
  const OptimizerOptions options;
  CHECK(make_optimizer("sgd", options)->slots() == 0);
  CHECK(make_optimizer("adam", options)->slots() == 2);
  CHECK(make_optimizer("adamw", options)->slots() == 2);
  CHECK(make_optimizer("adagrad", options)->slots() == 1);
  CHECK(make_optimizer("lion", options)->slots() == 1);
  const auto with_momentum = make_optimizer("sgd", options_of("sgd", {{"momentum", 0.9}}));
  CHECK(with_momentum->slots() == 1);
  CHECK(with_momentum->initial_state(0) == 0.0f);
  const OptimizerOptions accumulating = options_of("adagrad", {{"initial_accumulator", 0.25}, {"momentum", 0.5}});
  CHECK(make_optimizer("adagrad", accumulating)->initial_state(0) == 0.25f);
  for (const char* name : {"", "SGD", "adafactor", "adam "}) CHECK(make_optimizer(name, options) == nullptr);
}

TEST_CASE("a NaN in the gradient reaches the parameter in every optimizer") {
  for (const auto& [name, options] : variants()) {
    CAPTURE(name);
    Training training(name, options, std::vector<float>(40, 1.0f));
    std::vector<float> grad(40, 1.0f);
    grad[37] = std::numeric_limits<float>::quiet_NaN();
    training.step(1, 0.01, grad);
    CHECK(std::isnan(training.params[37]));
    CHECK(std::isfinite(training.params[36]));
  }
}

}  // namespace

}  // namespace tributary::optimizers_test
