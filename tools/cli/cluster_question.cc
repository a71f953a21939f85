#include "tools/cli/cluster_question.h"

#include <utility>
#include <zmq.hpp>

#include "common/base/clock.h"
#include "common/daemon/refusal_watch.h"
#include "common/doctor/check_list.h"
#include "common/doctor/reach.h"
#include "common/security/socket_keys.h"
#include "common/wire/codec.h"
#include "common/wire/lane_reply.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr std::uint64_t kPatienceMs = 5000;  // once connected
constexpr long kPollMs = 50;

// Returns the coordinator's answer to one question; an error's message continues "it ...".
Result<ClusterFacts> answer_of(const std::string& endpoint, const Credentials& credentials, const std::string& key) {
  zmq::context_t context(1);
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  set_common_options(socket, kMaxControlBytes, 1);
  if (credentials.own) connect_with(socket, *credentials.own, key);
  RefusalWatch refusals(context, socket);
  socket.connect(endpoint);
  const std::vector<std::byte> question = encode_control(ClusterQuestion{});
  zmq::message_t frame(question.data(), question.size());
  send_now(socket, frame, false);
  for (const std::uint64_t until = steady_ms() + kPatienceMs; steady_ms() < until;) {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, kPollMs);
    if (const auto why = refusals.failed(credentials.own != nullptr)) {
      return fail(ErrorCode::kInvalidArgument, "refuses this daemon: " + *why);
    }
    zmq::message_t body;
    if (receive_frames(socket, {&body, 1}) == 0) continue;
    if (is_lane_reply(bytes_of(body))) {
      return fail(ErrorCode::kConfig,
                  "is a server's lane, and no coordinator: give the address that server 0 has as "
                  "[server] coordinator");
    }
    Result<ControlMessage> message = decode_control(bytes_of(body));
    if (!message) return fail(message.error().code, "answers what is not understood: " + message.error().message);
    if (auto* facts = std::get_if<ClusterFacts>(&*message)) return std::move(*facts);
    if (std::holds_alternative<SeatReport>(*message)) {
      return fail(ErrorCode::kNotFound, "may have the coordinator, and has not");
    }
    if (const auto* error = std::get_if<ControlError>(&*message))
      return fail(error->code, "answers: " + error->message);
  }
  return fail(ErrorCode::kTimeout, "takes connections and says nothing for " + std::to_string(kPatienceMs / 1000) +
                                       " s: its process stands still, or has no time");
}

}  // namespace

Asked ask_cluster(const std::vector<std::string>& endpoints, const Credentials& credentials) {
  CheckList out;
  out.section("coordinator");
  const std::atomic<bool> never{false};
  std::optional<ClusterFacts> cluster;
  for (std::size_t i = 0; i < endpoints.size() && !cluster; ++i) {
    const std::string& endpoint = endpoints[i];
    // One that is lost is no problem where another one has the coordinator.
    const auto tell = [&](const std::string& found, const std::string& cure) {
      i + 1 == endpoints.size() ? out.problem("reached", found, cure) : out.note("reached", found, cure);
    };
    const Reach way = reach({endpoint}, never).front();
    if (!way.why_not.empty()) {
      tell(endpoint + ": " + way.why_not, way.cure);
      continue;
    }
    if (!speaks_zmtp(endpoint)) {
      tell("what is at " + endpoint + " is another program: it does not speak as a coordinator does",
           "give the address that server " + std::to_string(i) +
               " has as [server] coordinator, or stop what listens there");
      continue;
    }
    Result<ClusterFacts> facts =
        answer_of(endpoint, credentials, credentials.own ? credentials.coordinators.at(i).key : std::string());
    if (facts) {
      out.ok("reached", endpoint + (way.from.empty() ? "" : ", from " + way.from));
      cluster = std::move(*facts);
    } else if (facts.error().code == ErrorCode::kNotFound && i + 1 < endpoints.size()) {
      out.ok("stands by", endpoint);
    } else {
      tell("what is at " + endpoint + " " + facts.error().message,
           "its log, and `tributary doctor --config` on its machine, say more");
    }
  }
  return {out.take(), std::move(cluster)};
}

}  // namespace tributary
