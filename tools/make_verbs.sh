#!/bin/sh
# Prints docs/VERBS.md: the help of every verb, as the program gives it.
h=${HYDRAHEAD:-build/hydrahead}
cat <<'END'
# The verbs of hydrahead

Made by `make docs` from the program's option tables, which are also its `--help` and its man pages. `make check` compares.
END
for verb in $("$h" help --verbs); do
    printf '\n## %s\n\n```text\n' "$verb"
    "$h" help "$verb"
    printf '```\n'
done
