#!/usr/bin/env bash
# Writes manual pages and completion of programs below PREFIX/share, where man and the shells look. Called by
# `cmake --install` for the Debian package.
#
#   scripts/write_manuals.sh PREFIX PROGRAM...      the first is `tributary`
set -euo pipefail
umask 022
share=$1/share
shift
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
bash=$share/bash-completion/completions
zsh=$share/zsh/vendor-completions
fish=$share/fish/vendor_completions.d
mkdir -p "$bash" "$zsh" "$fish"

for program; do "$program" --manual "$pages"; done
for page in "$pages"/*; do
  mkdir -p "$share/man/man${page##*.}"
  gzip -9n <"$page" >"$share/man/man${page##*.}/${page##*/}.gz"
done

"$1" completion bash >"$bash/tributary"
"$1" completion zsh >"$zsh/_tributary"
"$1" completion fish >"$fish/tributary.fish"
# bash and fish look for a file of the program's name.
for program in "${@:2}"; do
  ln -sf tributary "$bash/${program##*/}"
  ln -sf tributary.fish "$fish/${program##*/}.fish"
done
