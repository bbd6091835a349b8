#!/bin/sh
# `make check`: everything about the sources that a machine can judge. Each check prints one line; all are run before the verdict.
failed=
run() {
    name=$1
    shift
    if "$@"; then echo "ok      $name"; else
        echo "FAILED  $name"
        failed="$failed, $name"
    fi
}
unique_names() { # a fast kernel bears the name of its op
    twice=$(git ls-files '*.c' '*.h' '*.cu' '*.sh' '*.py' | grep -v '^src/ops/simd/\|^src/ops/cuda/' | sed 's|.*/||' | sort | uniq -d)
    [ -z "$twice" ] || { echo "two files have the name:" $twice; return 1; }
}
formatted() { git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror; }
run "floors and forbidden calls" tools/check_floors.sh
run "file names are unique" unique_names
run "headers compile alone" tools/check_headers.sh
run "no warnings with gcc" tools/check_warnings.sh gcc
run "no warnings with clang" tools/check_warnings.sh clang
run "formatting" formatted
run "documents match the option tables" tools/check_docs.sh
[ -z "$failed" ] || { echo "make check failed: ${failed#, }"; exit 1; }
