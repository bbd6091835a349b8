#!/bin/sh
# run_tests.sh FOLDER PROGRAM...: runs each test program from the repository's root and prints cmocka's own lines and the time it took; a
# program that dies, fails or takes more than TEST_SECONDS (600) makes the whole run fail. The last line sums cmocka's counts. EMULATOR:
# words that stand before each program.
folder=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
: "${TSAN_OPTIONS:=suppressions=tools/tsan.supp ignore_noninstrumented_modules=1}"
: "${ASAN_OPTIONS:=detect_leaks=1 allocator_may_return_null=1}"
: "${LSAN_OPTIONS:=suppressions=tools/lsan.supp print_suppressions=0}"
# Threads that wait spin for milliseconds by default, which makes everything several times slower where processors are shared.
: "${OMP_WAIT_POLICY:=passive}"
export TSAN_OPTIONS ASAN_OPTIONS LSAN_OPTIONS OMP_WAIT_POLICY
passed=0 failed=0 skipped=0 broken=
for program in "$@"; do
    name=${program#"$folder"/}
    echo "== $name"
    start=$(date +%s)
    { timeout "${TEST_SECONDS:-600}" $EMULATOR "$program" 2>&1; echo "$?" >"$log.rc"; } | tee "$log"
    rc=$(cat "$log.rc")
    # cmocka: "[  PASSED  ] 3 test(s).", "[  FAILED  ] 1 test(s), listed below:", "[  SKIPPED ] 2 test(s), listed below:"
    count() { sed -n "s/^\[ *$1 *\] \([0-9]*\) test(s).*/\1/p" "$log" | awk '{ n += $1 } END { if (NR) print n }'; }
    p=$(count PASSED) f=$(count FAILED) s=$(count SKIPPED)
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0})) skipped=$((skipped + ${s:-0}))
    if [ "$rc" != 0 ]; then
        broken="$broken $name"
        [ "${f:-0}" = 0 ] && failed=$((failed + 1)) && echo "== $name died with status $rc"
    elif [ -z "$p" ]; then
        broken="$broken $name"
        failed=$((failed + 1))
        echo "== $name said nothing of its tests"
    fi
    echo "== $(($(date +%s) - start)) s"
done
rm -f "$log.rc"
echo
[ -n "$broken" ] && echo "programs that failed:$broken"
[ "$skipped" != 0 ] && echo "$skipped skipped (the reason stands above each)"
echo "$passed passed, $failed failed"
[ -z "$broken" ]
