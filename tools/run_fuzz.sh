#!/bin/sh
# run_fuzz.sh BUILD [TARGET...]: each libFuzzer target (all of them by default) for FUZZ_SECONDS, from its seeds in tests/fuzz/seeds and from what
# earlier runs found worth keeping. An input that crashes, hangs or takes more than 2 GB stays in BUILD/crashes and fails the run.
build=$1
shift
seconds=${FUZZ_SECONDS:-60}
mkdir -p "$build/crashes"
failed=
[ $# = 0 ] && set -- $(cd "$build/fuzz" && ls | grep -E '^fuzz_[a-z0-9_]+$')
for target in "$@"; do
    name=${target#fuzz_}
    mkdir -p "$build/corpus/$name" "tests/fuzz/seeds/$name"
    echo "== $target, $seconds s"
    "$build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$build/crashes/$name-" "$build/corpus/$name" "tests/fuzz/seeds/$name" 2>&1 |
        tee "$build/crashes/$name.log" | grep -E 'ERROR|SUMMARY|Test unit written|number_of_executed_units|new_units_added'
    grep -qE 'ERROR: |SUMMARY: ' "$build/crashes/$name.log" && failed="$failed $name"
done
[ -z "$failed" ] && echo "nothing found" && exit 0
echo "found something in:$failed (inputs in $build/crashes)"
exit 1
