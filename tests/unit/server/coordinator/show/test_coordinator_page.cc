// The page, made from a coordinator's status.
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "server/coordinator/show/coordinator_page.h"
#include "server/coordinator/show/coordinator_status.h"
#include "server/coordinator/show/html.h"
#include "tests/unit/expect.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing::coordinator_page_test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kHostile = "<script>alert('&\"')</script>";
const std::string kHarmless = "&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;";

Json said_by(const Cluster& cluster, const EventList& events = {}) {
  return {{"endpoint", "tcp://10.0.0.1:7070"},
          {"time", "2026-01-31T12:00:00Z"},
          {"jobs", jobs_json(cluster.core.jobs())},
          {"peers", peers_json(cluster.core.peers(), cluster.now)},
          {"events", events_json(events.recent(0))}};
}

std::string page_of(const Json& coordinator) {
  return coordinator_page(coordinator, "abc123");
}

// Between <main> and </main>.
std::string facts_of(const Json& coordinator) {
  const std::string page = page_of(coordinator);
  const std::size_t begin = page.find("<main>"), end = page.find("</main>");
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  return page.substr(begin, end - begin);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// A job of two nodes and two servers; node 1 is a round behind, and server 1 two.
void train(Cluster& cluster, const std::string& figure = "loss") {
  cluster.everybody(2);
  cluster.run(2);
  for (std::uint32_t node = 0; node < 2; ++node) {
    NodePace pace;
    pace.job = cluster.open().job;
    pace.view = cluster.open().view;
    pace.node = NodeRank(node);
    for (const std::uint64_t rounds : {1, 9}) {  // a window is the difference of two
      pace.rounds = rounds;
      pace.compute_ns = rounds * 30'000'000;
      pace.reduce_ns = rounds * 10'000'000;
      pace.network_ns = rounds * 20'000'000;
      pace.said.assign(2, Round(10 - node));
      pace.figures = {Round(9), {{figure, 0.25, 8}}};
      cluster.say(worker_peer(node), Heartbeat{worker_incarnation(node), {}, {pace}, 3'000'000, 4'500'000});
    }
  }
  cluster.beat_server(0, 9, 10);
  cluster.beat_server(1, 7, 7);
}

}  // namespace

TEST_CASE("a running job's facts are told: rounds, figures, where time goes, who is behind, bytes") {
  Cluster cluster(2);
  train(cluster);
  const std::string facts = facts_of(said_by(cluster));
  CHECK(contains(facts, "job &#39;mnist&#39;: rounds get done"));
  CHECK(contains(facts, "<td data-column=\"Nodes\">2 of 2</td>"));
  CHECK(contains(facts, "<td data-column=\"Round\">7 to 10</td>"));
  CHECK(contains(facts, "data-rate=\"round mnist\" data-value=\"7\" data-unit=\"1\""));
  CHECK(contains(facts, "<td data-column=\"Figure\">loss</td><td data-column=\"Mean\">0.25</td>"));
  CHECK(contains(facts, "data-course=\"mnist loss\" data-value=\"0.25\""));
  CHECK(contains(facts,
                 "<th scope=\"row\">node 1 (worker host1)</th><td data-column=\"Job\">mnist</td>"
                 "<td data-column=\"Gradients of round\">9</td><td data-column=\"Rounds behind\">1</td>"));
  CHECK(contains(facts, "<span class=\"compute\">30.0 ms</span>"));
  CHECK(contains(facts, "<rect class=\"reduction\" x=\"80.0\" y=\"0\" width=\"26.7\" height=\"14\"/>"));
  CHECK(contains(facts,
                 "<th scope=\"row\">server 1</th><td data-column=\"Job\">mnist</td><td data-column=\"Round\">7</td>"
                 "<td data-column=\"Rounds behind\">2</td>"));
  CHECK(contains(facts, "<td data-column=\"Payload in\">3.000 MB</td>"));
  CHECK(contains(facts, "data-rate=\"out worker host1\" data-value=\"4500000\" data-unit=\"1e6\""));
}

TEST_CASE("the answer to why no round gets done is a stall's, or who is waited for, or that nobody trains") {
  Cluster cluster(2);
  CHECK(contains(facts_of(said_by(cluster)), "no job is known"));
  cluster.everybody(2);
  cluster.join(0, {.nodes = 2});
  CHECK(contains(facts_of(said_by(cluster)), "class=\"why waits\">job &#39;mnist&#39;: waits for node 1</p>"));
  Cluster other(2);
  train(other);
  Json said = said_by(other);
  said["jobs"][0]["stalled_ms"] = 6100;
  said["jobs"][0]["why_no_round"] = "server 1 (6 s) has not been heard";
  said["jobs"][0]["not_saved"] = "server 0: No space left on device";
  CHECK(contains(facts_of(said),
                 "class=\"why stalls\">job &#39;mnist&#39;: no round for 6.1 s: server 1 (6 s) has not been"));
  CHECK(contains(facts_of(said), "class=\"why stalls\">job &#39;mnist&#39;: not saved: server 0: No space left"));
  other.leave(0, LeaveKind::kStopped, 7, "rank 1 was told to stop (SIGTERM)");
  other.all_done(7);
  CHECK(contains(facts_of(said_by(other)), "does not run (idle); rank 1 was told to stop (SIGTERM)"));
}

TEST_CASE("what comes from trainers, names and logs is text, in cells and in attributes") {
  Cluster cluster(2);
  train(cluster, kHostile);
  EventList events;
  events.add({"2026-01-31T12:34:56Z", LogLevel::kError, "lost worker " + kHostile, 0});
  Json said = said_by(cluster, events);
  for (const char* key : {"name", "phase", "waiting_for", "why_no_round", "not_saved", "last_stop"}) {
    CAPTURE(key);
    Json hostile = said;
    hostile["jobs"][0]["stalled_ms"] = 1;
    hostile["jobs"][0][key] = kHostile;
    const std::string facts = facts_of(hostile);
    CHECK_FALSE(contains(facts, "<script"));
    CHECK(contains(facts, kHarmless));
  }
  said["peers"][0]["name"] = kHostile;
  said["jobs"][0]["members"][0]["worker"] = kHostile;
  const std::string facts = facts_of(said);
  CHECK_FALSE(contains(facts, "<script"));
  CHECK(contains(facts, "<td data-column=\"Figure\">" + kHarmless + "</td>"));
  CHECK(contains(facts, "data-course=\"mnist " + kHarmless + "\""));
  CHECK(contains(facts, "data-rate=\"in server " + kHarmless + "\""));
  CHECK(contains(facts, "node 0 (worker " + kHarmless + ")"));
  CHECK(contains(facts,
                 "<th scope=\"row\">12:34:56</th><td data-column=\"Level\"><span class=\"error\">error</span></td>"
                 "<td data-column=\"What\">lost worker " +
                     kHarmless + "</td>"));
}

TEST_CASE("a mean that is not finite is said to be so, and is no point of a course") {
  Cluster cluster(2);
  train(cluster);
  Json said = said_by(cluster);
  said["jobs"][0]["figures"]["means"]["loss"] = nullptr;
  CHECK(contains(facts_of(said), "<td data-column=\"Mean\">not finite</td>"));
  CHECK(contains(facts_of(said), "data-course=\"mnist loss\" data-value=\"\""));
}

TEST_CASE("styles and the script have the nonce, and facts cannot ask for one") {
  Cluster cluster(2);
  train(cluster, "{{nonce}} {{main}}");
  const std::string page = page_of(said_by(cluster));
  CHECK(count(page, "nonce=\"abc123\"") == 2);
  CHECK(count(page, "abc123") == 2);
  CHECK(count(page, "<script") == 1);
  CHECK(count(page, "<style") == 1);
  CHECK(contains(page, "{{nonce}} {{main}}</td>"));
  CHECK_FALSE(contains(page, " style="));
}

TEST_CASE("parts of a bar that has no length make none") {
  CHECK(Html::bar({{"compute", 0.0}, {"network", 0.0}}).code().empty());
  CHECK(Html::bar({{"compute", std::nan("")}}).code().empty());
  CHECK(Html::element("p", "", Html::text("a < b")).code() == "<p>a &lt; b</p>");
}

}  // namespace tributary::testing::coordinator_page_test
