#include "server/coordinator/show/coordinator_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "common/base/printed.h"
#include "common/base/quantity.h"
#include "common/config/choice.h"
#include "server/coordinator/show/html.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNothing = "-";

std::string words_of(const Json& value) {
  if (value.is_null() || value == "") return kNothing;
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Html cell(const Json& value) {
  return Html::text(words_of(value));
}

// A counter's growth a second, in units; the script's.
Html rate(const std::string& name, const Json& value, const char* unit) {
  return Html::live(kNothing, {{"data-rate", name}, {"data-value", words_of(value)}, {"data-unit", unit}});
}

std::string seconds(const Json& ms) {
  return printed("%.1f s", ms.get<double>() * 1e-3);
}

std::string rounds(const Json& of) {
  const std::string low = words_of(of.at("min_version")), high = words_of(of.at("max_version"));
  return low == high ? low : low + " to " + high;
}

std::string name_of(const Json& job) {
  return job.at("name").get<std::string>();
}

// How many rounds behind the furthest of `all` it is. Nothing where something is not known.
std::string behind(const Json& all, const Json& one, const char* round) {
  std::uint64_t furthest = 0;
  for (const Json& other : all) {
    if (other.at(round).is_number()) furthest = std::max(furthest, other.at(round).get<std::uint64_t>());
  }
  return one.at(round).is_number() ? std::to_string(furthest - one.at(round).get<std::uint64_t>()) : kNothing;
}

// ---- Why no round gets done ----

struct Answer {
  const char* kind = "";  // class
  std::string words;
};

Answer why(const Json& job) {
  const std::string stall = job.at("why_no_round"), missing = job.at("waiting_for"), phase = job.at("phase");
  if (!stall.empty()) return {"why stalls", "no round for " + seconds(job.at("stalled_ms")) + ": " + stall};
  if (!missing.empty()) return {"why waits", "waits for " + missing};
  const bool clocks = job.at("mode") == word(Mode::kSsp) || job.at("mode") == word(Mode::kAsync);
  if (phase == "running")
    return {"why fine", clocks ? "runs; its nodes do not wait for each other" : "rounds get done"};
  if (job.at("finished") == true) return {"why fine", "is finished"};
  const std::string stop = job.at("last_stop");
  return {"why waits", "does not run (" + phase + ")" + (stop.empty() ? "" : "; " + stop)};
}

Html answers(const Json& jobs) {
  Html all = Html::element("h2", "", Html::text("Why is no round getting done?"));
  const auto say = [&](const char* kind, const Json& job, const std::string& words) {
    all += Html::element("p", kind, Html::text("job '" + name_of(job) + "': " + words));
  };
  for (const Json& job : jobs) {
    const Answer answer = why(job);
    say(answer.kind, job, answer.words);
    if (const std::string lost = job.at("not_saved"); !lost.empty()) say("why stalls", job, "not saved: " + lost);
    if (const std::string lost = job.value("no_checkpoint", ""); !lost.empty()) {
      say("why stalls", job, "no checkpoint: " + lost);
    }
  }
  if (jobs.empty()) all += Html::element("p", "why fine", Html::text("no job is known"));
  return all;
}

// ---- Tables ----

std::string snapshot(const Json& job) {
  const Json& now = job.at("snapshot");
  if (now.at("under_way").is_null()) return kNothing;
  std::vector<std::string> servers;
  for (const Json& server : now.at("waits_for")) servers.push_back("server " + words_of(server));
  return "of round " + words_of(now.at("under_way")) + ", waits for " + listed(servers);
}

Html jobs_table(const Json& jobs) {
  HtmlTable table("Jobs", {"Job", "Phase", "View", "Nodes", "Ranks", "Round", "Rounds/s", "Durable",
                           "Snapshot under way", "Last stop"});
  for (const Json& job : jobs) {
    table.add({Html::text(name_of(job)), job.at("finished") == true ? Html::text("finished") : cell(job.at("phase")),
               cell(job.at("view")), Html::text(words_of(job.at("joined")) + " of " + words_of(job.at("nodes"))),
               cell(job.at("world_size")), Html::text(rounds(job)),
               rate("round " + name_of(job), job.at("min_version"), "1"), cell(job.at("committed")),
               Html::text(snapshot(job)), cell(job.at("last_stop"))});
  }
  return table.html();
}

Html figures_table(const Json& jobs) {
  HtmlTable table("What trainers say", {"Job", "Figure", "Mean", "Of round", "Since the page was opened"});
  for (const Json& job : jobs) {
    if (job.at("figures").is_null()) continue;
    for (const auto& [name, mean] : job.at("figures").at("means").items()) {
      const double value = mean.is_number() ? mean.get<double>() : std::nan("");
      const bool finite = std::isfinite(value);
      table.add({Html::text(name_of(job)), Html::text(name), Html::text(finite ? printed("%.6g", value) : "not finite"),
                 cell(job.at("figures").at("round")),
                 Html::live(kNothing, {{"data-course", name_of(job) + " " + name},
                                       {"data-value", finite ? printed("%.9g", value) : ""}})});
    }
  }
  return table.html();
}

// The cells of a node's time in a round: three phases, their shares, and whether the node lags.
std::vector<Html> pace_cells(const Json& paces, const Json& node) {
  constexpr std::pair<const char*, const char*> kPhases[] = {
      {"compute", "compute_ms"}, {"reduction", "reduction_ms"}, {"network", "network_ms"}};
  const auto pace = std::ranges::find_if(paces, [&](const Json& one) { return one.at("node") == node; });
  if (pace == paces.end()) return std::vector<Html>(std::size(kPhases) + 2, Html::text(kNothing));
  std::vector<Html> cells;
  std::vector<std::pair<const char*, double>> parts;
  for (const auto& [phase, key] : kPhases) {
    const double ms = pace->at(key).get<double>();
    cells.push_back(Html::element("span", phase, Html::text(printed("%.1f ms", ms))));
    parts.emplace_back(phase, ms);
  }
  cells.push_back(Html::bar(parts));
  cells.push_back(pace->at("lags").is_null() ? Html::text(kNothing) : cell(pace->at("lags").at("text")));
  return cells;
}

Html nodes_table(const Json& jobs) {
  HtmlTable table("Nodes, and where a round's time goes", {"Node", "Job", "Gradients of round", "Rounds behind",
                                                           "Compute", "Reduction", "Network", "Split", "Lags"});
  for (const Json& job : jobs) {
    const Json& members = job.at("members");
    for (const Json& member : members) {
      std::vector<Html> row = {
          Html::text("node " + words_of(member.at("node")) + " (worker " + words_of(member.at("worker")) + ")"),
          Html::text(name_of(job)), cell(member.at("gradients_of")),
          Html::text(behind(members, member, "gradients_of"))};
      std::vector<Html> paces = pace_cells(job.at("paces"), member.at("node"));
      row.insert(row.end(), std::make_move_iterator(paces.begin()), std::make_move_iterator(paces.end()));
      table.add(row);
    }
  }
  return table.html();
}

// The table of the makers of rounds; for jobs with servers, with each server's share of the model.
Html servers_table(const Json& jobs) {
  HtmlTable table("Rounds by who makes them", {"By", "Job", "Round", "Rounds behind", "Share of the model"});
  for (const Json& job : jobs) {
    const Json& versions = job.at("versions");
    for (const Json& one : versions) {
      const bool server = one.contains("server");
      std::string share = kNothing;
      if (server && job.at("placement").is_object()) {
        for (const Json& placed : job.at("placement").at("servers")) {
          if (placed.at("server") != one.at("server")) continue;
          share = printed("%.1f %%, ", 100.0 * placed.at("share").get<double>()) +
                  bytes_in_words(placed.at("bytes").get<double>());
        }
      }
      table.add({Html::text(server ? "server " + words_of(one.at("server")) : "node " + words_of(one.at("node"))),
                 Html::text(name_of(job)), Html::text(rounds(one)), Html::text(behind(versions, one, "min_version")),
                 Html::text(share)});
    }
  }
  return table.html();
}

Html daemons_table(const Json& peers) {
  HtmlTable table("Daemons", {"Daemon", "Heard", "Its clock is", "Payload in", "MB/s in", "Payload out", "MB/s out"});
  for (const Json& peer : peers) {
    const std::string name = words_of(peer.at("kind")) + " " + words_of(peer.at("name"));
    const std::string heard = seconds(peer.at("last_heard_ms")) + " ago";
    const bool alive = peer.at("alive") == true;
    const std::string clock = peer.at("clock");
    table.add(
        {Html::text(name), alive ? Html::text(heard) : Html::element("span", "error", Html::text("lost, " + heard)),
         Html::text(clock.empty() ? kNothing : clock), Html::text(bytes_in_words(peer.at("bytes_in").get<double>())),
         rate("in " + name, peer.at("bytes_in"), "1e6"), Html::text(bytes_in_words(peer.at("bytes_out").get<double>())),
         rate("out " + name, peer.at("bytes_out"), "1e6")});
  }
  return table.html();
}

// The table of events, the newest first; with the time of day but no date, which an hour does not need.
Html events_table(const Json& events) {
  constexpr std::size_t kDate = sizeof "2026-01-31T" - 1, kTime = sizeof "12:00:00" - 1;
  HtmlTable table("Events of the last hour", {"UTC", "Level", "What"});
  for (auto event = events.rbegin(); event != events.rend(); ++event) {
    const std::string time = event->at("time"), level = event->at("level");
    table.add({Html::text(time.substr(std::min(kDate, time.size()), kTime)),
               Html::element("span", level, Html::text(level)), cell(event->at("text"))});
  }
  return table.html();
}

void put(std::string& page, std::string_view place, const std::string& what) {
  for (std::size_t at = page.find(place); at != std::string::npos; at = page.find(place, at + what.size())) {
    page.replace(at, place.size(), what);
  }
}

std::string page_with(const Html& main, const std::string& nonce) {
  std::string page(kPageTemplate);
  put(page, "{{nonce}}", nonce);  // first: the facts may have these words
  put(page, "{{main}}", "<main>\n" + main.code() + "</main>");
  return page;
}

}  // namespace

std::string coordinator_page(const Json& coordinator, const std::string& nonce) {
  const Json& jobs = coordinator.at("jobs");
  Html main = Html::element(
      "p", "quiet",
      Html::text("coordinator at " + words_of(coordinator.at("endpoint")) + ", " + words_of(coordinator.at("time"))));
  for (const Html& part : {answers(jobs), jobs_table(jobs), figures_table(jobs), nodes_table(jobs), servers_table(jobs),
                           daemons_table(coordinator.at("peers")), events_table(coordinator.at("events"))}) {
    main += part;
  }
  return page_with(main, nonce);
}

std::string standby_page(const std::string& why, const std::string& nonce) {
  return page_with(Html::element("p", "quiet", Html::text(why)), nonce);
}

}  // namespace tributary
