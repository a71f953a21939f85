// tributary completion: what a shell needs to complete the command lines of our programs. Each program says itself what
// may come next (common/base/command_line.h, --complete), so that the scripts never change.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "tools/cli/parts/commands.h"

namespace tributary::cli {
namespace {

constexpr const char* kCompletionFooter = R"(
Prints a script for bash, zsh or fish. The Debian package has them where shells look.

Examples:
  source <(tributary completion bash)                  # for this shell; zsh likewise
  tributary completion bash >> ~/.bashrc
  tributary completion zsh > "${fpath[1]}/_tributary"
  tributary completion fish > ~/.config/fish/completions/tributary.fish)";

// bash splits words at '=', and has an empty word after it only when something is typed there.
constexpr const char* kBash = R"(_tributary() {
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}") found
  [[ ${words[-1]} != = ]] || words+=("")
  found=$("${COMP_WORDS[0]/#\~/$HOME}" --complete "${words[@]}" 2>/dev/null) || compopt -o default
  [[ -z $found ]] || mapfile -t COMPREPLY <<<"$found"
  COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
}
complete -F _tributary tributary tributary-server tributary-worker tributary-train
)";

// A function for the folder of a $fpath, or for `source`.
constexpr const char* kZsh = R"(#compdef tributary tributary-server tributary-worker tributary-train
_tributary() {
  local said wants_paths=0
  local -a found
  said=$(${~words[1]} --complete "${(@Q)words[2,CURRENT]}" 2>/dev/null) || wants_paths=1
  found=("${(@f)said}")
  found=("${(@)found//:/\\:}")
  found=("${(@)found/$'\t'/:}")
  [[ -z $said ]] || _describe tributary found
  (( wants_paths )) || return 0
  [[ $PREFIX != --*=* ]] || compset -P '*='
  _files
}
if [[ ${funcstack[1]} == _tributary ]]; then
  _tributary "$@"
else
  compdef _tributary tributary tributary-server tributary-worker tributary-train
fi
)";

constexpr const char* kFish = R"(function __tributary_complete
  set -l words (commandline -opc)
  set -l now (commandline -ct)
  set -l found ($words[1] --complete $words[2..-1] "$now" 2>/dev/null)
  set -l wants_paths $status
  string join \n -- $found
  test $wants_paths = 0; or __fish_complete_path "$now"
end
for program in tributary tributary-server tributary-worker tributary-train
  complete -c $program -f -a '(__tributary_complete)'
end
)";

constexpr std::pair<const char*, const char*> kScripts[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

}  // namespace

void add_completion(CliCommand app, int& exit_status) {
  auto shell = std::make_shared<std::string>();
  CliCommand command = app.add_subcommand("completion", "a script that completes our programs' command lines");
  command->footer(kCompletionFooter);
  std::vector<std::string> shells;
  for (const auto& script : kScripts) shells.emplace_back(script.first);
  command->add_option("SHELL", *shell, "whose script to print")->required()->check(one_of(shells));
  command->callback([shell, &exit_status] {
    for (const auto& [name, script] : kScripts) {
      if (*shell == name) std::fputs(script, stdout);
    }
    exit_status = 0;
  });
}

}  // namespace tributary::cli
