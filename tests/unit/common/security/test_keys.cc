// Keys in files, the peers that a folder of keys admits, and daemons that may start without keys.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/security/admitted_nodes.h"
#include "common/security/authorized_keys.h"
#include "common/security/credentials.h"
#include "common/security/exposure.h"
#include "common/security/key_folder.h"
#include "common/security/path_roots.h"
#include "tests/unit/expect.h"
#include "tests/unit/other_user.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing::keys_test {
namespace {

using testing::contains;

namespace fs = std::filesystem;

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

KeyPair pair_of(const std::string& name, Role role) {
  return required(make_key_pair(name, role));
}

template <class T>
std::string error_of(const Result<T>& result) {
  REQUIRE_FALSE(result.has_value());
  return result.error().message;
}

KeyFolder folder_with_a_node(const TempDir& dir) {
  KeyFolder folder{dir / "keys"};
  REQUIRE(make_key_folder(folder, Role::kServer));
  REQUIRE(add_key(folder, "node-0", Role::kWorker));
  return folder;
}

unsigned mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777;
}

}  // namespace

TEST_CASE("a pair goes into a file that is its owner's alone, and comes back") {
  const TempDir dir;
  const KeyPair pair = pair_of("node-0", Role::kWorker);
  CHECK(is_key(pair.identity.key));
  CHECK(is_key(pair.secret));
  CHECK(pair.identity.key != pair.secret);
  CHECK(pair_of("node-0", Role::kWorker).secret != pair.secret);
  const std::string file = dir / "node-0.key", pub = dir / "node-0.pub";
  REQUIRE(write_key_pair(file, pair));
  REQUIRE(write_identity(pub, pair.identity));
  CHECK(mode_of(file) == 0600);
  CHECK_FALSE(contains(text_of(pub), pair.secret));
  const auto read = required(read_key_pair(file));
  CHECK(read.identity == pair.identity);
  CHECK(read.secret == pair.secret);
  CHECK(read_identity(pub) == pair.identity);
  CHECK(contains(write_key_pair(file, pair).error().message, "is there already"));

  ::chmod(file.c_str(), 0640);
  const std::string open = error_of(read_key_pair(file));
  CHECK(contains(open, "other users may read (mode 640)"));
  CHECK(contains(open, "chmod 600"));
}

TEST_CASE("what is no key is refused with the file and the reason") {
  const TempDir dir;
  const KeyPair pair = pair_of("a", Role::kServer);
  int files = 0;
  const auto refused = [&](const std::string& text, const std::string& part) {
    const std::string file = dir / ("bad-" + std::to_string(files++) + ".key");
    REQUIRE(write_secret(file, text));
    const std::string error = error_of(read_key_pair(file));
    CHECK_MESSAGE(contains(error, part), error);
    CHECK(contains(error, file));
  };
  const std::string key = "public = \"" + pair.identity.key + "\"\nsecret = \"" + pair.secret + "\"\n";
  refused("", "has no [key] name");
  refused("no TOML", "");
  refused("[key]\nname = \"a/b\"\nrole = \"server\"\n" + key, "has no [key] name");
  refused("[key]\nname = \"a\"\nrole = \"king\"\n" + key, "must be one of server, worker or admin");
  refused("[key]\nname = \"a\"\nrole = \"server\"\nsecret = \"" + pair.secret + "\"\n", "has no [key] public");
  refused("[key]\nname = \"a\"\nrole = \"server\"\npublic = \"" + pair.identity.key + "\"\n", "it is no .key file");
  refused("[key]\nname = \"a\"\nrole = \"server\"\nage = 3\n" + key, "age");
  refused(std::string(5000, '#'), "more than 4096 bytes");
  CHECK(contains(error_of(read_key_pair(dir / "none.key")), "cannot open"));
  CHECK(contains(error_of(read_key_pair(dir.path())), "no file of a key"));
  REQUIRE(write_key_pair(dir / "a.key", pair));
  CHECK(contains(error_of(read_identity(dir / "a.key")), "a secret, which belongs nowhere but into its owner's .key"));
  for (const char* name : {"", "a b", "../a", ".a", "ä"}) CHECK_FALSE(make_key_pair(name, Role::kWorker));
  CHECK_FALSE(make_key_pair(std::string(kMaxKeyName + 1, 'a'), Role::kWorker));
}

TEST_CASE("a token is long, secret and its owner's alone") {
  const TempDir dir;
  const std::string token = random_token();
  CHECK(token.size() == 64);
  CHECK(random_token() != token);
  REQUIRE(write_secret(dir / "token", token));
  CHECK(read_token(dir / "token") == token);
  REQUIRE(write_secret(dir / "short", "abc"));
  CHECK(contains(error_of(read_token(dir / "short")), "no token of 32 or more"));
  ::chmod((dir / "token").c_str(), 0644);
  CHECK(contains(error_of(read_token(dir / "token")), "chmod 600"));
}

TEST_CASE("a secret is its owner's alone, or root's for a group") {
  CHECK_FALSE(others_read(0600, 1000, 1000));
  CHECK_FALSE(others_read(0400, 0, 0));
  CHECK(others_read(0640, 1000, 1000));
  CHECK(others_read(0440, 0, 0));
  CHECK_FALSE(others_read(0440, 0, 1000));
  CHECK_FALSE(others_read(0640, 0, 1000));
  CHECK(others_read(0660, 0, 1000));
  CHECK(others_read(0444, 0, 1000));
  CHECK(others_read(0640, 1001, 1000));
}

TEST_CASE("what decides whose keys count is written by nobody but its reader and root") {
  CHECK_FALSE(others_write(S_IFREG | 0644, 1000, 1000));
  CHECK_FALSE(others_write(S_IFREG | 0644, 0, 1000));
  CHECK(others_write(S_IFREG | 0600, 1001, 1000));
  CHECK(others_write(S_IFREG | 0664, 0, 1000));
  CHECK(others_write(S_IFREG | 0646, 1000, 1000));
  CHECK_FALSE(others_write(S_IFDIR | 0755, 0, 1000));
  CHECK(others_write(S_IFDIR | 0775, 1000, 1000));
  CHECK(others_write(S_IFDIR | 0755, 1001, 1000));
  CHECK_FALSE(others_write(S_IFDIR | 01777, 0, 1000));  // each file is its owner's
  CHECK(others_write(S_IFREG | 01666, 0, 1000));
}

TEST_CASE("folders of keys are made so that others cannot write them, whatever the umask") {
  const TempDir dir;
  const KeyFolder folder{dir / "keys"};
  const mode_t before = ::umask(0);
  const Status made = make_key_folder(folder, Role::kServer);
  const auto added = add_key(folder, "node-0", Role::kWorker);
  ::umask(before);
  REQUIRE_MESSAGE(made, made.error().message);
  REQUIRE(added);
  for (const std::string& path : {folder.path, folder.authorized()}) CHECK(mode_of(path) == 0755);
  for (const std::string& path : {folder.coordinator(), folder.authorized() + "/node-0.pub"}) {
    CHECK(mode_of(path) == 0644);
  }
  ::chmod(folder.authorized().c_str(), 0775);
  CHECK(contains(error_of(add_key(folder, "node-1", Role::kWorker)), "may be written by other users"));
}

TEST_CASE("a file of keys that others may write or replace is refused, with the cure") {
  const TempDir dir;
  const KeyFolder folder{dir / "keys"};
  REQUIRE(make_key_folder(folder, Role::kServer));
  const auto refused = [&](const auto& read, const std::string& path, const std::string& open, mode_t mode) {
    REQUIRE(::chmod(open.c_str(), mode) == 0);
    const std::string error = error_of(read(path));
    CHECK_MESSAGE(contains(error, "may be written by other users"), error);
    CHECK_MESSAGE(contains(error, "chmod go-w " + open), error);
    REQUIRE(::chmod(open.c_str(), mode & ~022) == 0);
    CHECK(read(path));
  };
  refused(read_identity, folder.coordinator(), folder.coordinator(), 0664);
  refused(read_identity, folder.coordinator(), folder.path + "/", 0775);
  refused(read_key_pair, folder.pair("coordinator"), folder.path + "/", 0777);
  refused(read_token, folder.token(), folder.path + "/", 0775);
  ::chmod(folder.path.c_str(), 01777);
  CHECK(read_identity(folder.coordinator()));
  if (!can_be_another_user()) return;
  REQUIRE(::chown(folder.coordinator().c_str(), kOtherUser, kOtherUser) == 0);
  CHECK(contains(error_of(read_identity(folder.coordinator())), "owner 65534"));
}

TEST_CASE("into a folder that others may write nobody new comes, and who is in it may be shut out") {
  const TempDir dir;
  const KeyFolder folder = folder_with_a_node(dir);
  REQUIRE(add_key(folder, "node-1", Role::kWorker));
  const Identity own = read_key_pair(folder.pair("coordinator"))->identity;
  std::vector<std::string> told;
  const auto tell = [&](const std::string& line) { told.push_back(line); };
  ::chmod(folder.authorized().c_str(), 0775);
  CHECK(contains(error_of(AuthorizedKeys::open(folder.authorized(), {own}, tell)), "may be written by other users"));
  ::chmod(folder.authorized().c_str(), 0755);
  const auto opened = AuthorizedKeys::open(folder.authorized(), {own}, tell);
  REQUIRE(opened);
  AuthorizedKeys& keys = **opened;

  REQUIRE(add_key(folder, "node-2", Role::kWorker));
  ::chmod(folder.authorized().c_str(), 0775);
  for (int i = 0; i < 3; ++i) CHECK(keys.refresh().empty());
  REQUIRE(told.size() == 1);
  CHECK(contains(told[0], "until then nobody else is let in"));
  const auto is_in = [&](const std::string& name) { return keys.find(read_key_pair(folder.pair(name))->identity.key); };
  CHECK(is_in("node-0"));
  CHECK_FALSE(is_in("node-2"));
  fs::remove(folder.authorized() + "/node-1.pub");
  CHECK(keys.refresh().size() == 1);
  CHECK_FALSE(is_in("node-1"));
  ::chmod(folder.authorized().c_str(), 0755);
  CHECK(keys.refresh().empty());
  CHECK(is_in("node-2"));

  // A file that another user may write to is not trusted as its owner's.
  REQUIRE(add_key(folder, "node-3", Role::kWorker));
  ::chmod((folder.authorized() + "/node-3.pub").c_str(), 0666);
  CHECK(keys.refresh().empty());
  CHECK_FALSE(is_in("node-3"));
}

TEST_CASE("a folder lets in those whose .pub is there, and shuts them out when it goes") {
  const TempDir dir;
  const KeyFolder folder{dir / "keys"};
  CHECK(contains(error_of(add_key(folder, "node-0", Role::kWorker)), "tributary keys init"));
  REQUIRE(make_key_folder(folder, Role::kServer));
  CHECK_FALSE(make_key_folder(folder, Role::kServer));
  REQUIRE(add_key(folder, "node-0", Role::kWorker));
  CHECK(contains(error_of(add_key(folder, "node-0", Role::kWorker)), "--rotate"));

  std::vector<std::string> told;
  const Identity own = read_key_pair(folder.pair("coordinator"))->identity;
  const auto opened =
      AuthorizedKeys::open(folder.authorized(), {own}, [&](const std::string& line) { told.push_back(line); });
  REQUIRE_MESSAGE(opened, opened.error().message);
  AuthorizedKeys& keys = **opened;
  const Identity first = read_key_pair(folder.pair("node-0"))->identity;
  CHECK(keys.find(own.key) == own);
  CHECK(keys.find(first.key) == first);
  CHECK_FALSE(keys.find(pair_of("node-0", Role::kWorker).identity.key));

  // Rotating: both are valid until the first one's file goes.
  const auto second_pair = required(add_key(folder, "node-0", Role::kWorker, true));
  CHECK(second_pair == folder.pair("node-0.2"));
  const Identity second = read_key_pair(second_pair)->identity;
  CHECK(keys.refresh().empty());
  CHECK(keys.find(first.key));
  CHECK(keys.find(second.key)->name == "node-0");
  fs::remove(folder.authorized() + "/node-0.pub");
  const std::vector<Identity> gone = keys.refresh();
  REQUIRE(gone.size() == 1);
  CHECK(gone[0] == first);
  CHECK_FALSE(keys.find(first.key));
  CHECK(keys.find(second.key));
  CHECK(told.empty());

  // An error is reported once, and neither admits nor removes a peer.
  std::ofstream(folder.authorized() + "/bad.pub") << "nonsense";
  for (int i = 0; i < 3; ++i) CHECK(keys.refresh().empty());
  REQUIRE(told.size() == 1);
  CHECK(contains(told[0], "bad.pub"));
  REQUIRE(write_identity(folder.authorized() + "/zz-copy.pub", second));
  CHECK(keys.refresh().empty());
  CHECK(told.size() == 2);
  fs::remove(folder.authorized() + "/zz-copy.pub");
  // A file that cannot be read any more is not one that has gone.
  std::ofstream(folder.authorized() + "/node-0.2.pub") << "half of";
  CHECK(keys.refresh().empty());
  CHECK(keys.find(second.key));
  CHECK(contains(told.back(), "what it said before counts"));
  fs::rename(folder.authorized(), dir / "away");
  CHECK(keys.refresh().size() == 1);
  CHECK_FALSE(keys.find(second.key));
  CHECK(keys.find(own.key));
  CHECK(contains(told.back(), "is gone: nobody is let in"));
  CHECK(contains(error_of(AuthorizedKeys::open(dir / "none", {own}, [](const std::string&) {})),
                 "[security] authorized"));
}

TEST_CASE("lanes admit the nodes of a job's last view") {
  AdmittedNodes admitted(nullptr);
  CHECK_FALSE(admitted.admit("a"));
  admitted.set(JobId(1), ViewId(1), {"a", "b"});
  admitted.set(JobId(2), ViewId(1), {"b", "c"});
  for (const char* key : {"a", "b", "c"}) CHECK(admitted.admit(key));
  admitted.set(JobId(1), ViewId(2), {"a"});
  admitted.set(JobId(2), ViewId(2), {});
  CHECK(admitted.admit("a"));
  CHECK_FALSE(admitted.admit("b"));
  admitted.keep([](JobId job) { return job == JobId(2); });
  CHECK_FALSE(admitted.admit("a"));
}

TEST_CASE("measuring is let in while it is said, and only for those who are named") {
  AdmittedNodes open(nullptr);  // without keys
  CHECK_FALSE(open.may_measure(""));
  open.measure(3, {"", ""});
  CHECK(open.may_measure(""));
  open.keep([](JobId) { return false; });
  CHECK(open.may_measure(""));
  open.measure_no_more();
  CHECK_FALSE(open.may_measure(""));
  AdmittedNodes keyed(std::make_shared<const KeyPair>(make_key_pair("server-0", Role::kServer).value()));
  keyed.set(JobId(1), ViewId(1), {"b"});
  keyed.measure(3, {"a", ""});
  CHECK(keyed.may_measure("a"));
  CHECK(keyed.admit("a"));
  CHECK_FALSE(keyed.may_measure("b"));  // of a job
  keyed.measure(3, {"", ""});           // revoked
  CHECK_FALSE(keyed.may_measure("a"));
  CHECK_FALSE(keyed.admit("a"));
}

TEST_CASE("a token says what it is for, and is made by two alone") {
  const KeyPair node = make_key_pair("node-0", Role::kWorker).value();
  const KeyPair server = make_key_pair("server-1", Role::kServer).value();
  const KeyPair other = make_key_pair("node-1", Role::kWorker).value();
  const DataToken token{JobId(7), ViewId(3), NodeRank(2), ShardIndex(1), LaneIndex(4), 5};
  CHECK(token_name(token) == "7 3 2 5");
  CHECK(token_named(token_name(token), ShardIndex(1), LaneIndex(4)).value() == token);
  for (const char* text : {"", "7 3 2", "7 3 2 5 ", "7 3 2 5 6", "7  3 2 5", "-7 3 2 5", "7 3 x 5", "7 3 2 99999999999",
                           "18446744073709551616 3 2 5"}) {
    CAPTURE(text);
    CHECK(token_named(text, ShardIndex(1), LaneIndex(4)).error().code == ErrorCode::kMalformed);
  }
  CHECK_FALSE(token_named(std::string(kMaxTokenName + 1, '1'), ShardIndex(1), LaneIndex(4)));

  const auto proof = required(token_proof(token, node, server.identity.key));
  CHECK(proof.size() == 64);
  CHECK(proof == token_proof(token, server, node.identity.key).value());
  CHECK(proof != token_proof(token, other, server.identity.key).value());
  CHECK(proof != token_proof(token, node, other.identity.key).value());
  const auto differs = [&](auto change) {
    DataToken changed = token;
    change(changed);
    CHECK(token_proof(changed, node, server.identity.key).value() != proof);
  };
  differs([](DataToken& t) { t.job = JobId(8); });
  differs([](DataToken& t) { t.view = ViewId(4); });
  differs([](DataToken& t) { t.node = NodeRank(3); });
  differs([](DataToken& t) { t.shard = ShardIndex(2); });
  differs([](DataToken& t) { t.lane = LaneIndex(5); });
  differs([](DataToken& t) { t.use = 6; });
  CHECK_FALSE(token_proof(token, node, "no key"));
  CHECK_FALSE(token_proof(token, node, std::string(40, '0')));  // all its bytes are 0
}

TEST_CASE("a lane takes each token of a node once, and of the view that is open") {
  const KeyPair node = make_key_pair("node-0", Role::kWorker).value();
  const auto server = std::make_shared<const KeyPair>(make_key_pair("server-0", Role::kServer).value());
  AdmittedNodes admitted(server);
  admitted.set(JobId(1), ViewId(2), {make_key_pair("node-9", Role::kWorker)->identity.key, node.identity.key});
  const DataToken first{JobId(1), ViewId(2), NodeRank(1), ShardIndex(0), LaneIndex(0)};
  const auto shown = [&](const DataToken& token) {
    return admitted.admit(token, token_proof(token, node, server->identity.key).value());
  };
  CHECK(shown(first).value() == node.identity.key);
  CHECK(contains(error_of(shown(first)), "used already"));
  DataToken next = first;
  next.use = 3;
  CHECK(shown(next));
  next.use = 2;
  CHECK(contains(error_of(shown(next)), "used already"));
  next.use = 4;
  CHECK(contains(error_of(admitted.admit(next, std::string(64, '0'))), "is not one of node 1"));
  CHECK(contains(error_of(admitted.admit(next, "")), "is not one of node 1"));
  CHECK(shown(next));  // a wrong one has not used it up
  DataToken elsewhere = first;
  elsewhere.lane = LaneIndex(1);
  CHECK(shown(elsewhere));
  DataToken others = first;
  others.node = NodeRank(0);
  CHECK(contains(error_of(shown(others)), "is not one of node 0"));
  for (const NodeRank none : {NodeRank(2), NodeRank(4'000'000'000)}) {
    others.node = none;
    CHECK(contains(error_of(shown(others)), "of no view that is open"));
  }
  admitted.set(JobId(1), ViewId(2), {node.identity.key, node.identity.key});
  CHECK(contains(error_of(shown(first)), "used already"));  // the view is the same
  admitted.set(JobId(1), ViewId(3), {node.identity.key, node.identity.key});
  CHECK(contains(error_of(shown(first)), "of no view that is open"));
  DataToken later = first;
  later.view = ViewId(3);
  CHECK(shown(later));
}

TEST_CASE("jobs of a worker stand in its .pub, and go on with its second key") {
  const TempDir dir;
  const KeyFolder folder = folder_with_a_node(dir);
  const std::string pub = folder.authorized() + "/node-0.pub";
  CHECK(read_identity(pub)->jobs.empty());
  const auto says = [&](const std::string& line) {
    std::ifstream in(pub);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    std::ofstream(pub) << text.substr(0, text.find("jobs = ")) << "jobs = " << line << "\n";
    return read_identity(pub);
  };
  for (const char* bad : {R"([""])", R"(["a*b"])", R"(["*x"])", R"(["a\"b"])", "7"}) {
    CHECK_MESSAGE(contains(error_of(says(bad)), "node-0.pub"), bad);
  }
  CHECK((says(R"(["mnist", "alice-*"])")->jobs == std::vector<std::string>{"mnist", "alice-*"}));
  CHECK((says(R"("a")")->jobs == std::vector<std::string>{"a"}));
  CHECK(says(R"(["mnist", "alice-*"])"));
  REQUIRE(add_key(folder, "node-0", Role::kWorker, true));
  CHECK((read_identity(folder.authorized() + "/node-0.2.pub")->jobs == std::vector<std::string>{"mnist", "alice-*"}));
  CHECK(read_key_pair(folder.pair("node-0.2"))->identity.jobs.empty());
}

TEST_CASE("a token that showed once in a measurement shows never again, though that ends and goes on") {
  const KeyPair node = make_key_pair("node-0", Role::kWorker).value();
  const auto server = std::make_shared<const KeyPair>(make_key_pair("server-0", Role::kServer).value());
  AdmittedNodes admitted(server);
  admitted.measure(5, {node.identity.key});
  const DataToken token{JobId(), ViewId(5), NodeRank(0), ShardIndex(0), LaneIndex(0)};
  const auto shown = [&](const DataToken& t) {
    return admitted.admit(t, token_proof(t, node, server->identity.key).value());
  };
  CHECK(shown(token));
  CHECK(admitted.may_measure(node.identity.key));
  admitted.measure_no_more();  // the coordinator was away for a moment
  CHECK_FALSE(shown(token));
  CHECK_FALSE(admitted.admit(node.identity.key));
  CHECK_FALSE(admitted.may_measure(node.identity.key));
  admitted.measure(5, {node.identity.key});
  CHECK(contains(error_of(shown(token)), "used already"));
  DataToken next = token;
  next.use = token.use + 1;
  CHECK(shown(next));
  admitted.measure(6, {node.identity.key});
  DataToken later = token;
  later.view = ViewId(6);
  CHECK(shown(later));
  AdmittedNodes open(nullptr);
  open.measure(1, {""});
  CHECK(open.may_measure(""));
  open.measure_no_more();
  CHECK_FALSE(open.may_measure(""));
}

TEST_CASE("credentials that do not fit together are refused") {
  const TempDir dir;
  const KeyFolder folder = folder_with_a_node(dir);
  SecurityConfig config;
  const auto none = required(load_credentials(config, Role::kWorker, false));
  CHECK_FALSE(none.own);

  config.coordinator_keys = {folder.coordinator()};
  CHECK(contains(error_of(load_credentials(config, Role::kWorker, false)), "but no keys"));
  config.keys = folder.pair("node-0");
  CHECK(contains(error_of(load_credentials(config, Role::kServer, false)),
                 "has the key of worker 'node-0', and this is a server"));
  const auto worker = required(load_credentials(config, Role::kWorker, false));
  config.coordinator_keys.clear();
  CHECK(contains(error_of(load_credentials(config, Role::kWorker, false)), "coordinator_key is not set"));
  config.keys = folder.pair("coordinator");
  CHECK(contains(error_of(load_credentials(config, Role::kServer, true)), "admin_token is not set"));
  config.admin_token = folder.token();
  CHECK(contains(error_of(load_credentials(config, Role::kServer, true)), "authorized is not set"));
  config.authorized = folder.authorized();
  const auto server = required(load_credentials(config, Role::kServer, true));
  CHECK(server.coordinator_keys() == worker.coordinator_keys());
  CHECK(server.admin_token.size() == 64);
  CHECK(worker.admin_token.empty());
}

TEST_CASE("orders stay below the roots, whatever links and dots a path has") {
  const TempDir dir;
  fs::create_directories(dir / "shared/checkpoints");
  fs::create_directories(dir / "secret");
  fs::create_directory_symlink(dir / "secret", dir / "shared/link");
  const PathRoots roots({dir / "shared/", "/nowhere"}, true);
  CHECK(roots.check(dir / "shared/checkpoints/a-round-1"));
  CHECK(roots.check(dir / "shared/new/deep"));
  CHECK(roots.check(dir / "shared"));
  // Read to its NUL, as the system does, it is another one than as a whole.
  const std::string two_paths = dir / "secret/new" + std::string(1, '\0') + "/../../shared/x";
  for (const std::string& path : {two_paths, dir / "secret", dir / "shared/../secret/x", dir / "shared/link/x",
                                  dir / "shared2", std::string("/etc"), std::string("shared/x"), std::string("")}) {
    const Status checked = roots.check(path);
    REQUIRE_MESSAGE(!checked, path);
    CHECK(contains(checked.error().message, "[store] checkpoint_roots"));
  }
  CHECK(PathRoots({}, false).check("/anywhere"));
  const auto long_name = failure_of(PathRoots({}, false).open("/tmp/" + std::string(300, 'a')));
  CHECK(contains(long_name.message, "File name too long"));
  CHECK_FALSE(contains(long_name.message, "checkpoint_roots"));
  CHECK_FALSE(PathRoots({}, true).check("/anywhere"));
}

TEST_CASE("without keys nobody but a daemon's own user gets to it, or to where it looks for its coordinator") {
  const TempDir dir;
  fs::create_directory(dir / "shared");
  ::chmod((dir / "shared").c_str(), 0775);
  const auto told = [](const std::string& address, Audience widest = Audience::kUser) {
    const Listening listening[] = {{"[server] bind", address, "ipc:///own/server-0", widest}};
    CHECK(check_exposure(listening, true, false));
    CHECK(check_exposure(listening, false, true));
    const Status checked = check_exposure(listening, false, false);
    return checked ? std::string() : checked.error().message;
  };
  CHECK(told("") == "");
  CHECK(told("ipc://" + (dir / "s")) == "");
  CHECK(told("127.0.0.1:0", Audience::kMachine) == "");
  CHECK(contains(told("0.0.0.0:0", Audience::kMachine), "is not on this machine alone"));
  const std::string port = told("tcp://127.0.0.1:*");
  for (const char* part : {"is open to every user of this machine", "[server] bind = \"ipc:///own/server-0\"",
                           "tributary keys init", "insecure = true"}) {
    CHECK_MESSAGE(contains(port, part), port);
  }
  CHECK(contains(told("ipc://" + (dir / "shared/s")), "which other users may write"));
  CHECK(contains(told("ipc:///tmp/s"), "the folder /tmp, which other users may write"));
  CHECK(contains(told("ipc://" + (dir / "none/s")), "which is not there yet"));
  if (!can_be_another_user()) return;
  fs::create_directory(dir / "theirs");
  REQUIRE(::chown((dir / "theirs").c_str(), kOtherUser, kOtherUser) == 0);
  CHECK(contains(told("ipc://" + (dir / "theirs/s")), "which other users may write"));
}

TEST_CASE("no daemon without keys obeys a coordinator elsewhere, whatever its index") {
  for (const std::uint16_t index : {0, 1}) {
    ServerConfig config{.index = index, .servers = 2};
    CHECK(credentials_of(config));  // in the run folder
    for (const char* elsewhere : {"tcp://10.0.0.1:7070", "tcp://127.0.0.1:7070"}) {
      config.coordinators = {elsewhere};
      config.security.insecure = false;
      CHECK(contains(error_of(credentials_of(config)), std::string("[server] coordinator = \"") + elsewhere + "\""));
      config.security.insecure = true;
      CHECK(credentials_of(config));
    }
  }
}

TEST_CASE("where there are keys, an admin port that others reach has a token") {
  const TempDir dir;
  const KeyFolder folder = folder_with_a_node(dir);
  WorkerConfig config;
  config.coordinators = {"tcp://10.0.0.1:7070"};
  config.security.keys = folder.pair("node-0");
  config.security.coordinator_keys = {folder.coordinator()};
  CHECK(credentials_of(config));
  config.admin = "0.0.0.0:8080";
  const std::string refused = error_of(credentials_of(config));
  for (const char* part : {"[worker] admin = \"0.0.0.0:8080\" is not on this machine alone, and has no token",
                           "[worker] admin = \"127.0.0.1:0\"", "ssh -L", "[security] admin_token"}) {
    CHECK_MESSAGE(contains(refused, part), refused);
  }
  config.security.admin_token = folder.token();
  CHECK(credentials_of(config));
  config.security.admin_token.clear();
  config.admin = "";
  CHECK(credentials_of(config));
}

TEST_CASE("who listens beyond its machine has keys, or says that everybody is trusted") {
  for (const char* here : {"tcp://127.0.0.1:7070", "tcp://127.1.2.3:*", "tcp://localhost:1", "tcp://[::1]:7",
                           "ipc:///x", "127.0.0.1:0", "localhost:80", "[::1]:80", ""}) {
    CHECK_MESSAGE(stays_on_machine(here), here);
  }
  for (const char* out : {"tcp://0.0.0.0:*", "tcp://*:7070", "tcp://10.0.0.1:7070", "tcp://node-1:7070", "tcp://[::]:1",
                          "0.0.0.0:0", "tcp://127.0.0.1.example.org:7070", "tcp://127.evil:1"}) {
    CHECK_MESSAGE(!stays_on_machine(out), out);
  }
  const std::vector<Listening> listening = {{"[server] admin", "127.0.0.1:0", "x", Audience::kMachine},
                                            {"[server] coordinator", "tcp://10.0.0.1:7070", "ipc:///own/coordinator"}};
  CHECK(check_exposure(listening, true, false));
  CHECK(check_exposure(listening, false, true));
  const auto refused = failure_of(check_exposure(listening, false, false));
  for (const char* part : {"[server] coordinator = \"tcp://10.0.0.1:7070\"", "tributary keys init",
                           "[server] coordinator = \"ipc:///own/coordinator\"", "insecure = true"}) {
    CHECK_MESSAGE(contains(refused.message, part), refused.message);
  }
}

}  // namespace tributary::testing::keys_test
