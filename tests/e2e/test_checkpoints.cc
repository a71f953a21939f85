// Checkpoints with real daemons: saved while a job trains, checked, and restored on another number of servers.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/e2e.h"
#include "tests/unit/expect.h"
#include "tests/unit/server/store/small_disk.h"

namespace tributary::e2e::checkpoints_test {
namespace {

using testing::contains;

namespace fs = std::filesystem;

constexpr std::uint64_t kRounds = 4000;  // some seconds: long enough to be saved in the middle

ClusterOptions cluster_of(const std::string& base_dir, std::uint16_t servers) {
  return spread(base_dir, {.servers = servers});
}

// `tributary checkpoint ARGUMENTS`.
Outcome checkpoint(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {bin("tributary"), "checkpoint"});
  return run(arguments);
}

void restore(LocalCluster& cluster, const std::string& path, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"restore", path, "--base-dir", cluster.options().base_dir};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome restored = checkpoint(arguments);
  INFO(restored.text);
  REQUIRE(restored.status == 0);
}

nlohmann::json only_job(LocalCluster& cluster) {
  return status_of(cluster.coordinator_daemon()).at("coordinator").at("jobs").at(0);
}

nlohmann::json save(LocalCluster& cluster, const std::string& job, const std::string& folder,
                    std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"save",  job, "--dir", folder, "--base-dir", cluster.options().base_dir,
                                        "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome saved = checkpoint(arguments);
  INFO(saved.text);
  REQUIRE(saved.status == 0);
  return saved.json();
}

std::string findings(const std::string& path) {
  const Outcome verified = checkpoint({"verify", path, "--json"});
  INFO(verified.text);
  const nlohmann::json json = verified.json();
  REQUIRE(json.is_object());
  CHECK(verified.status == (json.at("ok").get<bool>() ? 0 : 1));
  std::string all;
  for (const auto& one : json.at("checkpoints")) {
    for (const auto& finding : one.at("findings")) all += finding.get<std::string>() + "\n";
  }
  return all;
}

// Answers one HTTP request with `body`, and is gone.
class OneAnswer {
 public:
  explicit OneAnswer(const std::string& body) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(fd_, any, sizeof address) == 0);
    REQUIRE(::listen(fd_, 1) == 0);
    REQUIRE(::getsockname(fd_, any, &size) == 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::jthread([this, body] {
      const int peer = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
      ::shutdown(fd_, SHUT_RDWR);  // whoever asks again is refused
      char request[4096];
      const std::string answer =
          "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
          "\r\nConnection: close\r\n\r\n" + body;
      if (peer >= 0 && ::recv(peer, request, sizeof request, 0) > 0) [[maybe_unused]]
        const auto sent = ::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      // Its end of the connection first: bytes of the request that were not read would reset it.
      while (peer >= 0 && ::recv(peer, request, sizeof request, 0) > 0) {
      }
      ::close(peer);
    });
  }
  ~OneAnswer() {
    ::shutdown(fd_, SHUT_RDWR);  // also if nobody came
    thread_.join();
    ::close(fd_);
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
  std::jthread thread_;
};

void flip_bit(const std::string& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
  REQUIRE(stream.good());
}

// Saved in the middle by two servers, restored on `servers` others: ends in the bits of an undisturbed run.
void move_job(const Job& job, std::uint16_t servers, bool digest_is_standalone) {
  const TempDir dir;
  const std::string job_file = write_job(dir, job), folder = dir / "checkpoints";
  std::string reference;
  nlohmann::json saved;
  {
    const auto cluster = start(cluster_of(dir / "from", 2), job_file);
    // (A save is served by a snapshot that is under way, which may be of an earlier round.)
    wait_for(*cluster, "max_version", 100);
    saved = save(*cluster, job.name, folder);
    finish_training(*cluster);
    reference = results(*cluster)[0].at("digest");
    CHECK(cluster->stop().empty());
  }
  if (digest_is_standalone) CHECK(reference == standalone_digest(dir, job_file, 4));
  const std::string path = saved.at("path");
  const std::uint64_t round = saved.at("round");
  CHECK(round > 0);
  CHECK(round < job.rounds);
  CHECK(path == folder + "/" + job.name + "-round-" + std::to_string(round));
  CHECK(findings(path) == "");
  CHECK(fs::exists(path + "/shard-0.bin"));
  CHECK(fs::exists(path + "/shard-1.bin"));

  const auto cluster = start(cluster_of(dir / "to", servers));
  restore(*cluster, path);
  CHECK(job_number(*cluster, "committed") == round);
  start_trainers(*cluster, job_file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") == round);
  CHECK(all[0].at("rounds") == job.rounds);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a job saved while it trains on 2 servers goes on on 3, to the bits of a run that nobody disturbed") {
  move_job({.name = "move", .chunk_bytes = 8192, .rounds = 2 * kRounds}, 3, true);
}

TEST_CASE("residuals and estimates move along: int8 pushes and int8-delta pulls from 2 servers to 3") {
  Job job{.name = "feedback", .chunk_bytes = 8192, .rounds = 2 * kRounds};
  job.extra = "\n[encoding]\npush = \"int8\"\npull = \"int8-delta\"\n";
  move_job(job, 3, false);
}

// Trains the job from a checkpoint of round 0; the digest.
std::string train_from(const TempDir& dir, const std::string& path, const std::string& job_file,
                       std::uint16_t servers) {
  const auto cluster = start(cluster_of(dir / ("on-" + std::to_string(servers)), servers));
  restore(*cluster, path);
  start_trainers(*cluster, job_file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") == 0);
  CHECK(cluster->stop().empty());
  return all[0].at("digest");
}

TEST_CASE("parameters that were exported begin another job, the same one on 1 and on 3 servers") {
  const TempDir dir;
  const std::string first = write_job(dir, {.name = "first", .chunk_bytes = 8192, .rounds = 50});
  const std::string second =
      write_job(dir, {.name = "second", .optimizer = kMomentum, .chunk_bytes = 4096, .rounds = 30});
  const std::string file = dir / "model.safetensors";
  {
    const auto cluster = start(cluster_of(dir / "run", 2), first);
    finish_training(*cluster);
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") == 50; }));
    const std::string path = save(*cluster, "first", dir / "checkpoints").at("path");
    const Outcome exported = checkpoint({"export", path, file, "--optimizer", "--json"});
    INFO(exported.text);
    REQUIRE(exported.status == 0);
    CHECK(exported.json().at("tensors") == 18);  // 6, each with two moments
    CHECK(cluster->stop().empty());
  }
  const Outcome imported = checkpoint({"import", file, "--job", second, "--dir", dir / "checkpoints", "--json"});
  INFO(imported.text);
  REQUIRE(imported.status == 0);
  const std::string path = imported.json().at("path");
  CHECK(findings(path) == "");
  const std::string digest = train_from(dir, path, second, 1);
  CHECK(train_from(dir, path, second, 3) == digest);
  CHECK(digest != standalone_digest(dir, second, 4));  // which begins with values of its own
}

TEST_CASE(
    "an order that is not waited for is told by what accepted it, and an answer of something else by its address") {
  const TempDir dir;
  const std::string folder = dir / "checkpoints";
  const auto ask = [&](const std::string& body, std::vector<std::string> more) {
    const OneAnswer other(body);
    std::vector<std::string> arguments = {"save", "job", "--dir", folder, "--coordinator-admin", other.address()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::pair(checkpoint(arguments), other.address());
  };
  // Nobody is there to be asked how far it is.
  const auto [ordered, at] = ask(R"({"id":7})", {"--no-wait"});
  INFO(ordered.text);
  CHECK(ordered.status == 0);
  CHECK(contains(ordered.text, "ordered; `GET http://" + at + "/checkpoint/7`"));
  CHECK(ask(R"({"id":7})", {"--no-wait", "--json"}).first.json() == nlohmann::json{{"id", 7}});
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--no-wait"}}) {
    const auto [strange, where] = ask(R"({"fine":true})", more);
    INFO(strange.text);
    CHECK(strange.status == 1);
    CHECK(contains(strange.text, "http://" + where + "/checkpoint/save answered without an order's id"));
  }
}

TEST_CASE("a job whose server 0 has lost its store is known from the copies, and goes on from its last checkpoint") {
  const TempDir dir;
  const std::string base = dir / "run", folder = base + "/checkpoints";  // below the servers' roots
  Job job{.name = "copied", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 50};
  job.extra = "\n[checkpoint]\ndir = \"" + folder + "\"\nevery_s = 0\n";
  const std::string job_file = write_job(dir, job);
  const std::string reference = standalone_digest(dir, job_file, 4);
  ClusterOptions options = cluster_of(base, 2);
  options.secure = PayloadSecurity::kEncrypt;  // copies are servers' words
  {
    const auto cluster = start(options, job_file);
    wait_for(*cluster, "committed", 50);
    CHECK(cluster->stop().empty());  // the servers wait for the checkpoint
  }
  fs::remove_all(base + "/store-0");
  const auto cluster = start(options);
  // Known again, when both servers are there: with the round of its last snapshot.
  REQUIRE(eventually([&] {
    const auto jobs = status_of(cluster->servers()[0]).at("coordinator").at("jobs");
    return jobs.size() == 1 && jobs[0].at("name") == "copied";
  }));
  const std::uint64_t stopped = job_number(*cluster, "committed");
  CHECK(stopped >= 50);
  const std::string said = log_of(cluster->servers()[0]);
  CHECK(contains(said, "the registry in server 0's store lacks the records of 1 job"));
  const std::string path = folder + "/copied-round-" + std::to_string(stopped);
  const Outcome known = checkpoint({"restore", path, "--base-dir", base});
  CHECK(known.status == 1);
  CHECK(contains(known.text, "job 'copied' is there already, at round " + std::to_string(stopped)));
  restore(*cluster, path, {"--force"});
  start_trainers(*cluster, job_file);
  const auto all = finished(*cluster);
  CHECK(all[0].at("resumed_from") == stopped);
  CHECK(all[0].at("digest") == reference);
  CHECK(cluster->stop().empty());
}

TEST_CASE("[checkpoint] leaves the newest checkpoints of a job, the last one of the round where training stopped") {
  const TempDir dir;
  const std::string folder = dir / "checkpoints";
  Job job{.name = "kept", .chunk_bytes = 8192, .rounds = kRounds, .snapshot_every_rounds = 100};
  job.extra = "\n[checkpoint]\ndir = \"" + folder + "\"\nevery_s = 1\nkeep = 2\n";
  {
    const auto cluster = start(cluster_of(dir / "run", 2), write_job(dir, job));
    REQUIRE(eventually([&] { return fs::exists(folder) && !fs::is_empty(folder); }));
    finish_training(*cluster);
    CHECK(cluster->stop().empty());  // the servers wait for the last one
  }
  const nlohmann::json listed = checkpoint({"list", folder, "--json"}).json().at("checkpoints");
  REQUIRE(listed.size() >= 1);
  CHECK(listed.size() <= 2);
  CHECK(listed.back().at("round") == kRounds);
  CHECK(findings(folder) == "");
  const auto cluster = start(cluster_of(dir / "to", 3));
  restore(*cluster, folder + "/kept-round-" + std::to_string(kRounds));
  CHECK(job_number(*cluster, "committed") == kRounds);
  CHECK(cluster->stop().empty());
}

TEST_CASE("a full disk costs no state: checkpoints are written from memory, by order and where training stops") {
  const TempDir dir;
  fs::create_directories(dir / "run/store-1");
  const auto disk = testing::SmallDisk::mount(32u << 20, dir / "run/store-1");
  if (!disk) return;
  const std::string folder = dir / "checkpoints";
  Job job{.name = "kept", .chunk_bytes = 8192, .rounds = 3 * kRounds, .snapshot_every_rounds = 100};
  job.extra = "\n[checkpoint]\ndir = \"" + folder + "\"\n";
  const std::string job_file = write_job(dir, job);
  std::uint64_t stopped = 0;
  {
    const auto cluster = start(cluster_of(dir / "run", 2), job_file);
    wait_for(*cluster, "committed", 100);
    disk->fill();
    const auto refused = [&] { return only_job(*cluster).at("not_saved").get<std::string>(); };
    REQUIRE(eventually([&] { return contains(refused(), "No space left"); }));
    const std::uint64_t committed = job_number(*cluster, "committed");
    const nlohmann::json saved = save(*cluster, job.name, dir / "by-order");
    CHECK(saved.at("round") > committed);
    CHECK(findings(saved.at("path")) == "");
    CHECK(job_number(*cluster, "committed") == committed);
    for (auto* daemons : {&cluster->workers(), &cluster->servers()}) {
      for (Daemon& d : *daemons) d.process.send_signal(SIGTERM);
    }
    REQUIRE(cluster->wait_for_trainers(kPatience));
    for (Daemon& d : cluster->servers()) REQUIRE(d.process.wait(kPatience));
    stopped = results(*cluster)[0].at("rounds");
  }
  REQUIRE(stopped < job.rounds);
  const std::string last = folder + "/kept-round-" + std::to_string(stopped);
  CHECK(findings(last) == "");
  const auto cluster = start(cluster_of(dir / "to", 3));
  restore(*cluster, last);
  start_trainers(*cluster, job_file);
  CHECK(finished(*cluster)[0].at("resumed_from") == stopped);
  CHECK(results(*cluster)[0].at("digest") == standalone_digest(dir, job_file, 4));
  CHECK(cluster->stop().empty());
}

TEST_CASE("checkpoints of a stopped job: listed, verified, saved again for nothing, replaced by force") {
  const TempDir dir;
  const std::string job_file = write_job(dir, {.name = "still", .chunk_bytes = 8192, .rounds = 60});
  const std::string folder = dir / "checkpoints";
  const auto cluster = start(cluster_of(dir / "run", 2));
  const std::string base = cluster->options().base_dir;

  SUBCASE("everything in order, and what is not allowed") {
    Outcome none = checkpoint({"save", "still", "--dir", folder, "--base-dir", base});
    CHECK(none.status == 1);
    CHECK(contains(none.text, "there is no job 'still' here; there are none"));
    start_trainers(*cluster, job_file);
    finish_training(*cluster);
    REQUIRE(eventually([&] { return job_number(*cluster, "committed") == 60; }));
    const nlohmann::json first = save(*cluster, "still", folder);
    CHECK(first.at("round") == 60);
    CHECK(first.at("unchanged") == false);
    const nlohmann::json again = save(*cluster, "still", folder);
    CHECK(again.at("path") == first.at("path"));
    CHECK(again.at("unchanged") == true);
    CHECK_FALSE(fs::exists(first.at("path").get<std::string>() + ".partial"));

    const nlohmann::json listed = checkpoint({"list", folder, "--json"}).json().at("checkpoints");
    REQUIRE(listed.size() == 1);
    CHECK(listed[0].at("name") == "still-round-60");
    CHECK(listed[0].at("complete") == true);
    CHECK(listed[0].at("round") == 60);
    CHECK(listed[0].at("bytes").get<std::uint64_t>() > first.at("bytes").get<std::uint64_t>());

    const Outcome taken = checkpoint({"restore", first.at("path"), "--base-dir", base});
    CHECK(taken.status == 1);
    CHECK(contains(taken.text, "job 'still' is there already, at round 60; give --force"));
    const Outcome odd = checkpoint({"restore", first.at("path"), "--base-dir", base, "--name", "a/b"});
    CHECK(odd.status == 1);
    CHECK(contains(odd.text, "job.name"));
    restore(*cluster, first.at("path"), {"--force"});
    restore(*cluster, first.at("path"), {"--name", "twin"});
    // The replaced job's state is the checkpoint's: to save it again finds the same bytes.
    CHECK(save(*cluster, "still", folder).at("unchanged") == true);
    CHECK(contains(checkpoint({"save", "twin", "--dir", "/proc/no-such-place", "--base-dir", base}).text,
                   "the folder '/proc/no-such-place"));
  }
  SUBCASE("what verify finds") {
    start_trainers(*cluster, job_file);
    finish_training(*cluster);
    const std::string path = save(*cluster, "still", folder).at("path");
    const auto damaged = [&](const std::string& name) {
      const std::string copy = folder + "/" + name + "-round-60";
      fs::copy(path, copy);
      return copy;
    };
    const std::string flipped = damaged("flipped");
    flip_bit(flipped + "/shard-1.bin", fs::file_size(flipped + "/shard-1.bin") / 2);
    CHECK(contains(findings(flipped), "shard-1.bin': chunk "));
    CHECK(contains(findings(flipped), "of tensor"));

    const std::string missing = damaged("missing");
    fs::remove(missing + "/shard-0.bin");
    CHECK(findings(missing) == "shard-0.bin is missing\n");

    const std::string cut = damaged("cut");
    fs::resize_file(cut + "/shard-0.bin", fs::file_size(cut + "/shard-0.bin") - 100);
    CHECK(contains(findings(cut), "shard-0.bin has "));
    CHECK(contains(findings(cut), "it was cut short"));

    const std::string half = damaged("half");
    fs::remove(half + "/COMPLETE");
    CHECK(contains(findings(half), "COMPLETE is missing"));

    const std::string strange = damaged("strange");
    flip_bit(strange + "/manifest.json", 100);
    CHECK(contains(findings(strange), "manifest.json does not have the checksum that COMPLETE names"));

    const std::string swapped = damaged("swapped");
    fs::copy_file(path + "/shard-1.bin", swapped + "/shard-0.bin", fs::copy_options::overwrite_existing);
    CHECK(findings(swapped) != "");

    // All in the directory at once; and none of those can be restored, which says why.
    CHECK(contains(findings(folder), "shard-0.bin is missing"));
    for (const std::string& bad : {flipped, missing, cut, half, strange, swapped}) {
      const Outcome refused = checkpoint({"restore", bad, "--base-dir", base, "--name", "bad"});
      INFO(refused.text);
      CHECK(refused.status == 1);
      CHECK(refused.text.size() > 40);
    }
    const nlohmann::json jobs = status_of(cluster->coordinator_daemon()).at("coordinator").at("jobs");
    CHECK(jobs.size() == 1);  // nothing of the refused ones is left
    CHECK(checkpoint({"restore", path, "--base-dir", base, "--name", "bad"}).status == 0);
  }
  CHECK(cluster->stop().empty());
}

}  // namespace
}  // namespace tributary::e2e::checkpoints_test
