#!/bin/sh
# install.sh DESTDIR PREFIX: program, the shipped model, man pages, shell completion; the library and its header where there is a public one.
set -e
h=${HYDRAHEAD:-build/hydrahead} root=$1$2
man=$root/share/man/man1
mkdir -p "$root/bin" "$man" "$root/share/bash-completion/completions"
install -m 755 "$h" "$root/bin/hydrahead"
"$h" help --man > "$man/hydrahead.1"
for verb in $("$h" help --verbs); do "$h" help --man "$verb" > "$man/hydrahead-$verb.1"; done
install -m 644 tools/completion.bash "$root/share/bash-completion/completions/hydrahead"
mkdir -p "$root/share/hydrahead/models/nano"
install -m 644 models/nano/* "$root/share/hydrahead/models/nano/"
if [ -f include/hydrahead.h ]; then
    mkdir -p "$root/include" "$root/lib"
    install -m 644 include/hydrahead.h "$root/include/"
    install -m 644 "$(dirname "$h")/libhydrahead.a" "$root/lib/"
fi
echo "installed in $root"
