#!/bin/sh
# install.sh DESTDIR PREFIX: program, man pages, shell completion.
set -e
h=${HYDRAHEAD:-build/hydrahead} root=$1$2
man=$root/share/man/man1
mkdir -p "$root/bin" "$man" "$root/share/bash-completion/completions"
install -m 755 "$h" "$root/bin/hydrahead"
"$h" help --man > "$man/hydrahead.1"
for verb in $("$h" help --verbs); do "$h" help --man "$verb" > "$man/hydrahead-$verb.1"; done
install -m 644 tools/completion.bash "$root/share/bash-completion/completions/hydrahead"
echo "installed in $root"
