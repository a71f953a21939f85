// A part of a snapshot on its way from one store to another, over real sockets.
#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/daemon/log.h"
#include "server/copies/copy_fetcher.h"
#include "server/copies/copy_port.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/store_samples.h"

namespace tributary::testing::copy_port_test {
namespace {

constexpr std::uint32_t kChunks = 7;

std::shared_ptr<const KeyPair> key_of(const std::string& name) {
  return std::make_shared<const KeyPair>(make_key_pair(name, Role::kServer).value());
}

// Server 1's store, with its part of a snapshot, and its port.
struct Source {
  explicit Source(const std::string& path, std::shared_ptr<const KeyPair> own = nullptr)
      : key(own ? own->identity.key : std::string()), store(open_store(path, 1)) {
    info.shard = ShardIndex(1);
    write_snapshot(*store, pool, info);
    port = required(CopyPort::start(*store, {"tcp://127.0.0.1:*", "", std::move(own)}, quiet_logger()));
  }
  std::shared_ptr<Fetch> fetch(std::uint64_t round = 120) const {
    auto fetch = std::make_shared<Fetch>();
    fetch->job = info.job;
    fetch->round = Round(round);
    fetch->shard = ShardIndex(1);
    fetch->from = {ShardIndex(1), port->endpoint(), key};
    return fetch;
  }

  SnapshotInfo info = sample_info(7, 120, kChunks);
  const std::string key;
  BufferPool pool{kElements * sizeof(float), 32};
  std::unique_ptr<Store> store;
  std::unique_ptr<CopyPort> port;
};

// Another server's store, and who reads into it.
struct Reader {
  explicit Reader(const std::string& path, std::shared_ptr<const KeyPair> own = nullptr,
                  std::function<std::uint64_t()> trained = {})
      : store(open_store(path)),
        fetcher(
            *store, {std::move(own), 0, std::move(trained)}, [](std::function<void()> event) { event(); },
            [](const std::string&) {}) {}
  ~Reader() { fetcher.stop(); }
  // Returns how it ends.
  Status read(const std::shared_ptr<Fetch>& fetch) {
    begin(fetch);
    return end();
  }
  void begin(const std::shared_ptr<Fetch>& fetch) {
    fetcher.fetch(fetch, [this](const Status& status) {
      const std::lock_guard lock(mutex_);
      status_ = status;
      changed_.notify_all();
    });
  }
  Status end() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return status_.has_value(); }));
    return *std::exchange(status_, std::nullopt);
  }

  std::unique_ptr<Store> store;
  CopyFetcher fetcher;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> status_;
};

}  // namespace

TEST_CASE("a copy has all of the part, and stays when the part goes") {
  const TempDir dir;
  Source source(dir / "source");
  Reader reader(dir / "reader");
  const auto fetch = source.fetch();
  SUBCASE("beside training") {}
  SUBCASE("awaited") {
    fetch->paced = false;
  }
  required(reader.read(fetch));
  CHECK(fetch->bytes >= kChunks * kElements * sizeof(float) * (1 + kSlots));
  CHECK(reader.fetcher.moved() == fetch->bytes);
  REQUIRE(source.store->drop_job(source.info.job));
  REQUIRE(reader.store->jobs().size() == 1);
  CHECK(reader.store->jobs()[0].copy_of == ShardIndex(1));
  CHECK(load_snapshot(*reader.store, source.info).has_value());
}

TEST_CASE("a server reads its own part back") {
  const TempDir dir;
  Source source(dir / "source");
  Reader holder(dir / "holder");
  REQUIRE(holder.read(source.fetch()));
  auto port = required(CopyPort::start(*holder.store, {"tcp://127.0.0.1:*", "", nullptr}, quiet_logger()));
  auto empty = open_store(dir / "empty", 1);
  CopyFetcher fetcher(
      *empty, {nullptr, 0, {}}, [](std::function<void()> event) { event(); }, [](const std::string&) {});
  const auto fetch = source.fetch();
  fetch->from.copy_endpoint = port->endpoint();
  std::atomic<bool> ended{false};
  fetcher.fetch(fetch, [&](const Status& status) {
    CHECK(status);
    ended = true;
  });
  while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fetcher.stop();
  REQUIRE(empty->jobs().size() == 1);
  CHECK(empty->jobs()[0].own());
  CHECK(load_snapshot(*empty, source.info).has_value());
}

TEST_CASE("a snapshot that is not there, or no more wanted, leaves nothing") {
  const TempDir dir;
  Source source(dir / "source");
  Reader reader(dir / "reader");
  CHECK(contains(refusal(reader.read(source.fetch(121)), ErrorCode::kNotFound), "round 121"));
  const auto fetch = source.fetch();
  fetch->wanted = false;
  CHECK_FALSE(reader.read(fetch));
  CHECK(reader.store->jobs().empty());
}

TEST_CASE("a copy beside training waits for its turn, and is hurried") {
  const TempDir dir;
  Source source(dir / "source");
  std::atomic<std::uint64_t> trained{0};
  Reader reader(dir / "reader", nullptr, [&] { return trained += 1; });  // it never pauses
  const auto fetch = source.fetch();
  reader.begin(fetch);
  SUBCASE("training is over") {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fetch->paced = false;
    CHECK(reader.end());
  }
  SUBCASE("the server is stopped") {
    reader.fetcher.stop();
    (void)reader.end();
  }
}

TEST_CASE("with keys a server that the coordinator names may read, and no other") {
  const TempDir dir;
  const auto own = key_of("server-1"), friendly = key_of("server-0"), strange = key_of("server-9");
  Source source(dir / "source", own);
  source.port->admit({{{ShardIndex(0), "", friendly->identity.key}}});
  Reader reader(dir / "reader", friendly);
  required(reader.read(source.fetch()));
  Reader stranger(dir / "stranger", strange);
  const auto fetch = source.fetch();
  stranger.begin(fetch);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(fetch->bytes == 0);
  fetch->wanted = false;
  CHECK_FALSE(stranger.end());
}

TEST_CASE("the port takes no notice of what is no question") {
  const TempDir dir;
  Source source(dir / "source");
  zmq::context_t context;
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.connect(source.port->endpoint());
  for (const std::string& bytes : {std::string("noise"), std::string(100, '\0'), std::string(100'000, 'x')}) {
    peer.send(zmq::buffer(bytes), zmq::send_flags::none);
  }
  Reader reader(dir / "reader");
  CHECK(reader.read(source.fetch()));
}

}  // namespace tributary::testing::copy_port_test
