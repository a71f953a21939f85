#include "bench/permanent_trace.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "common/wire/trace_messages.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kOrderTimeout{5'000}, kPause{50};
constexpr std::uint64_t kRounds = 16;         // of the first trace
constexpr std::chrono::seconds kShortest{4};  // a trace that is over sooner is followed by one of twice as many

}  // namespace

PermanentTrace::PermanentTrace(std::string admin, std::string token, std::string job)
    : admin_(std::move(admin)),
      token_(std::move(token)),
      job_(std::move(job)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

PermanentTrace::~PermanentTrace() = default;

std::string PermanentTrace::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

// A trace's rounds begin half a second after the order, so it should not be short; and it must come to its end. While
// the job does not run the coordinator says why not, and is asked again.
void PermanentTrace::run(const std::stop_token& stop) {
  std::uint64_t rounds = kRounds, most = kMaxTraceRounds;
  Clock::time_point ordered;
  std::string path;  // of the trace that is being recorded; empty: none is
  for (; !stop.stop_requested(); std::this_thread::sleep_for(kPause)) {
    const bool orders = path.empty();
    const auto answer = http_order(
        admin_, orders ? "/trace/order" : path,
        orders ? std::optional(Json{{"job", job_}, {"rounds", rounds}}.dump()) : std::nullopt, kOrderTimeout, token_);
    const Json json = answer ? ordered_json_in(answer->body) : Json();
    if (orders && (!json.is_object() || json.contains("error"))) {
      const std::lock_guard lock(mutex_);
      refusal_ = json.is_object() ? json.value("error", "") : answer ? "no JSON" : answer.error().message;
    }
    if (!json.is_object()) continue;
    if (orders && json.contains("id")) {
      path = "/trace/" + json.at("id").dump();
      ordered = Clock::now();
    } else if (orders && json.value("error", "").find("a trace can have") != std::string::npos) {
      most = rounds = std::max<std::uint64_t>(rounds / 2, 1);
    } else if (!orders && json.value("over", false)) {
      traces_ += 1;
      events_ += json.value("events", std::uint64_t{0});
      if (Clock::now() - ordered < kShortest) rounds = std::min(2 * rounds, most);
      path.clear();
    }
  }
}

}  // namespace tributary::bench
