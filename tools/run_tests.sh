#!/bin/sh
# run_tests.sh FOLDER PROGRAM...: runs each test program from the repository's root and prints cmocka's own lines; a program that
# dies or fails makes the whole run fail. The last line counts programs, not tests.
folder=$1
shift
passed=0 failed=
for program in "$@"; do
    echo "== ${program#"$folder"/}"
    if "$program"; then passed=$((passed + 1)); else failed="$failed ${program#"$folder"/}"; fi
done
echo
if [ -n "$failed" ]; then
    echo "test programs that failed:$failed" >&2
    exit 1
fi
echo "all $passed test programs passed"
