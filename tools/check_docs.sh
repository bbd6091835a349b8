#!/bin/sh
# Documents against the program: docs/VERBS.md is what `make docs` makes; every verb has an example; every option that a document names exists;
# every file that a document links to exists; man pages have no errors where mandoc is there to say so.
h=${HYDRAHEAD:-build/hydrahead}
bad=0
say() { echo "$*"; bad=1; }
tools/make_verbs.sh | cmp -s - docs/VERBS.md || say "docs/VERBS.md is out of date: run make docs"
options=" $(for verb in $("$h" help --verbs); do "$h" help --options "$verb"; done | sort -u | tr '\n' ' ')--man --verbs --options --table --examples --version "
for verb in $("$h" help --verbs); do
    [ -n "$("$h" help --examples "$verb")" ] || say "$verb has no example"
    if command -v mandoc >/dev/null; then
        "$h" help --man "$verb" | mandoc -T lint -W error >/tmp/check_docs.$$ || { cat /tmp/check_docs.$$; say "man page of $verb"; }
    fi
done
documents=$(git ls-files '*.md')
for document in $documents; do
    # Lines with `hydrahead VERB ... --option`, in prose or in blocks.
    for option in $(grep -oE 'hydrahead [a-z]+ [^`]*' "$document" | grep -oE '(^| )--[a-z][a-z0-9-]+' | sort -u); do
        case $options in *" $option "*) ;; *) say "$document: hydrahead has no option $option" ;; esac
    done
    for link in $(grep -oE '\]\([^)#:]+' "$document" | sed 's/^](//'); do
        [ -e "$(dirname "$document")/$link" ] || say "$document: links to $link, which is not there"
    done
done
rm -f /tmp/check_docs.$$
exit $bad
