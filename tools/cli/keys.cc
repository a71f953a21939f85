// tributary keys: by which daemons know each other (docs/security.md).
#include <cstdio>
#include <memory>
#include <string>

#include "common/security/key_folder.h"
#include "tools/cli/parts/commands.h"
#include "tools/cli/parts/orders.h"

namespace tributary::cli {
namespace {

std::string configuration(const KeyFolder& folder, const std::string& pair, bool coordinator) {
  std::string text = "\n  [security]\n  keys = \"" + pair + "\"\n";
  if (!coordinator) return text + "  coordinator_key = \"" + folder.coordinator() + "\"\n";
  return text + "  authorized = \"" + folder.authorized() + "\"\n  admin_token = \"" + folder.token() + "\"\n";
}

int init(const KeyFolder& folder, Role role) {
  if (Status made = make_key_folder(folder, role); !made) return complain("keys", made.error());
  std::printf(
      "%s has the coordinator's keys, and the token of the admin ports. Into %s goes:\n%s\n", folder.path.c_str(),
      role == Role::kServer ? "server 0's server.toml" : "the worker.toml of the worker that serves the coordinator",
      configuration(folder, folder.pair(kCoordinatorName), true).c_str());
  std::printf("`tributary keys new NAME --role server|worker --dir %s` makes those of every other daemon.\n",
              folder.path.c_str());
  return 0;
}

int make(const KeyFolder& folder, const std::string& name, Role role, bool rotate) {
  const auto pair = add_key(folder, name, role, rotate);
  if (!pair) return complain("keys", pair.error());
  std::printf("%s is the %s's, and goes to its machine with %s:\n%s\n", pair->c_str(), word(role).c_str(),
              folder.coordinator().c_str(), configuration(folder, *pair, false).c_str());
  std::printf("It is let in now; remove its .pub in %s to shut it out, without a restart.\n",
              folder.authorized().c_str());
  return 0;
}

}  // namespace

void add_keys(CliCommand app, int& exit_status) {
  struct KeysOptions {
    KeyFolder folder;
    std::string name, role = "worker";
    bool rotate = false, worker = false;
  };
  auto options = std::make_shared<KeysOptions>();
  CliCommand keys = app.add_subcommand("keys", "make the keys by which daemons know each other");
  keys->require_subcommand(1);
  keys->footer(
      "\nExamples:\n"
      "  tributary keys init /etc/tributary/keys\n"
      "  tributary keys new server-1 --role server --dir /etc/tributary/keys\n"
      "  tributary keys new node-0 --role worker --dir /etc/tributary/keys\n\n"
      "A .key file is a secret: its owner's alone, on the machine that uses it. A .pub file in authorized/ lets its\n"
      "owner in, and shuts it out when it goes; server 0 looks every second.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage.");
  CliCommand first =
      keys->add_subcommand("init", "a folder with the coordinator's pair, an admin token and authorized/");
  first->add_option("DIR", options->folder.path, "the folder")->required();
  first->add_flag("--worker-serves", options->worker, "a worker is the coordinator (a cluster without servers)");
  first->callback([options, &exit_status] {
    exit_status = init(options->folder, options->worker ? Role::kWorker : Role::kServer);
  });
  CliCommand another = keys->add_subcommand("new", "a pair for another daemon");
  another->add_option("NAME", options->name, "of the daemon; a worker says hello as NAME, and server N as server-N")
      ->required();
  another->add_option("--role", options->role, "server, worker or admin")->check(one_of({"server", "worker", "admin"}));
  another->add_option("--dir", options->folder.path, "the folder that `init` made")->required()->type_name("DIR");
  another->add_flag("--rotate", options->rotate,
                    "a second pair of that name; the first stays valid until its .pub goes");
  another->callback([options, &exit_status] {
    exit_status = make(options->folder, options->name, *choice_of<Role>(options->role), options->rotate);
  });
}

}  // namespace tributary::cli
