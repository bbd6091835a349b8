#!/bin/bash
# sanitize_cuda.sh [TOOL...]: compute-sanitizer's racecheck, initcheck, memcheck and synccheck (or those named) over the tests of tests/cuda in small
# (HH_TEST_QUICK), after `make CUDA=1 cuda-tests`. JOBS run at once (as many as there are processors), each for SECONDS_EACH at most (200), all for
# SECONDS_ALL (600). Logs are in build-cuda/sanitizer. A line for each tool: tests, kernels of ours that were launched of those that there are, reports.
# Then the reports on ours, and the kernels that were never launched. Fails unless everything has run to its end, no test has failed and nothing was found in a kernel of ours.
#
#   racecheck   hands no order on from one arrival at a barrier to the next: what it may say of that in gdn_chain.cu and attention_bwd_wgmma.cu, and
#               nothing else, is counted apart. It has no kernels of cuBLAS: products take the plain kernel (HH_TEST_PRODUCTS), which has a run of its own
#   initcheck   does not see what the copy engine stores, nor, here, what cuBLAS does: HYDRAHEAD_CHECK=cuda makes scratch and what products write NaN
#               beforehand, so that these count as written, and what nobody wrote is found by the tests as a result that is none
#   memcheck    has cuBLAS's kernels too, for whose arguments we answer; initcheck and synccheck leave them out
cs=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
cuobjdump=$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)
[ -x "$cs" ] || { echo "compute-sanitizer was not found; it is part of NVIDIA's CUDA toolkit"; exit 1; }
[ $# = 0 ] && set -- racecheck initcheck memcheck synccheck
"$cs" --version | grep -m1 '^Version'
logs=build-cuda/sanitizer
rm -rf "$logs"
mkdir -p "$logs"
seconds=${SECONDS_EACH:-200}
end=$(($(date +%s) + ${SECONDS_ALL:-600}))
quick=HH_TEST_QUICK=1
plain=HH_TEST_PRODUCTS=plain
libraries="nvjet cutlass cublas gemm gemv xmma" # in the names of their kernels, and of none of ours

# count PATTERN FILE...: lines of all of them.
count() {
    local pattern=$1
    shift
    cat "$@" 2>/dev/null | grep -c "$pattern"
}

# run TOOL PROGRAM TESTS VARIABLE=VALUE
run() {
    local log="$logs/$1.$2.${3//[!a-z0-9_]/}" leave="" exclude="" name check="" products="" left=$((end - $(date +%s)))
    [ "$4" = $quick ] || log+=.${4//=/.}
    : >"$log.out"
    # racecheck (CUDA 13.0) ended tests at bf16 products by cuBLAS whose kernels were left out: an illegal access, which it "failed to handle".
    case $1 in
    racecheck)
        products=$plain
        [ "$4" = $plain ] || leave=product_plain
        ;;
    initcheck) leave=$libraries check=cuda ;;
    synccheck) leave=$libraries ;;
    esac
    for name in $leave; do exclude+=" --kernel-name-exclude kns=$name"; done
    # Allocations that are refused on purpose are no fault of a kernel. Jobs share the processors, racecheck's own threads too.
    [ "$left" -lt "$seconds" ] || left=$seconds
    [ "$left" -gt 0 ] && env $quick $products "$4" HH_TEST_LAUNCHES="$log.kernels" HYDRAHEAD_CHECK=$check HYDRAHEAD_TESTS="$3" timeout "$left" \
        "$cs" --tool "$1" --log-file "$log.log" --report-api-errors no --check-exit-code no --show-backtrace device --print-limit 1000 \
        --launch-timeout 100 $([ "$1" = racecheck ] && echo --racecheck-num-workers 2) $exclude "build-cuda/tests/cuda/test_cuda_$2" >"$log.out" 2>&1
    [ "$(count '^\[=*\].* run\.' "$log.out")" = "$(count '^\[=*\].*Running' "$log.out")" ] && grep -qs '^\[=' "$log.out" &&
        grep -qs SUMMARY "$log.log" || echo "$1: $2 $3 $4 did not come to its end" | tee "$log.unfinished"
}
export -f run count
export cs logs seconds end libraries quick plain

# one_by_one PROGRAM...: a job for each test.
one_by_one() {
    local program test
    for program in "$@"; do
        for test in $(grep -o 'cmocka_unit_test([a-z_0-9]*)' "tests/cuda/test_cuda_$program.c" | sed 's/.*(\(.*\))/\1/'); do
            echo "$program $test $quick"
        done
    done
}

# PROGRAM TESTS VARIABLE=VALUE, what takes longest first; also what only an older card would launch, and products without the library.
list_jobs() {
    one_by_one gdn model
    echo "rows * $quick"
    echo "products * $quick"
    printf '%s\n' "products any_* $plain" 'attention forward_bf16 HH_TEST_GPU=80' 'attention backward_bf16 HH_TEST_GPU=80'
    one_by_one attention gdn_bwd loss
    echo 'attention backward_bf16 HH_TEST_GPU=86'
    echo "copy * $quick"
    echo "backend * $quick"
}
list_jobs | while read -r program tests variable; do
    for tool in "$@"; do printf '%s\0' "$tool" "$program" "$tests" "$variable"; done
done | xargs -0 -n 4 -P "${JOBS:-$(nproc)}" bash -c 'run "$@"' run

# reports KIND FILE...: the tool's reports of this kind (ours, theirs, arrive), one a line, the lines of each joined, behind the name of its job.
reports() {
    local kind=$1
    shift
    awk -v kind="$kind" -v libraries="$libraries" '
        BEGIN { # what writes and what reads in the reports that are counted apart; <true> is one word in some versions
            yes = "<(\\(bool\\))?(1|true)>\\("
            writes[1] = "put\\("
            reads[1] = "take" yes
            writes[2] = "copy4" yes
            reads[2] = "own_keys<"
            writes[3] = "hh_bulk_copy_all" yes
            reads[3] = "(hh_ldmatrix_at\\(|hh_ldmatrix_trans_at\\(|hh_gdn_scale_tokens\\(|hh_gdn_pack_R\\(|run_chain<)"
        }
        function close_report(is, n, i, name) {
            if (text == "") return
            n = split(libraries, name, " ")
            is = "ours"
            for (i = 1; i <= n; i++) if (index(text, name[i])) is = "theirs"
            for (i = 1; i in writes; i++)
                if (is == "ours" && accesses && accesses == wrote[i] + read[i] && wrote[i] && read[i]) is = "arrive"
            if (is == kind) print job text
            text = ""
            accesses = 0
            for (i = 1; i in writes; i++) wrote[i] = read[i] = 0
        }
        FNR == 1 {
            close_report()
            job = FILENAME
            sub(/.*\//, "", job)
            sub(/^[a-z]*\./, "", job)
            sub(/\.*log$/, ": ", job)
        }
        /^=========[ ]*$/ || /SUMMARY/ { close_report(); next }
        /^========= COMPUTE-SANITIZER/ || !/^=========/ { next }
        {
            if (/ access at /) accesses++
            for (i = 1; i in writes; i++) {
                if ($0 ~ "Write access at (void )?" writes[i]) wrote[i]++
                if ($0 ~ "Read access at (void )?" reads[i]) read[i]++
            }
            sub(/^=========[ ]*/, "")
            text = text (text == "" ? "" : " | ") $0
        }
        END { close_report() }' "$@"
}

"$cuobjdump" -symbols build-cuda/tests/cuda/test_cuda_backend 2>/dev/null | awk '/FUNC/ && /ENTRY/ { print $NF }' | sort -u >"$logs/all.kernels"
all=$(wc -l <"$logs/all.kernels")
[ "$all" != 0 ] || echo "cuobjdump was not found, or listed no kernels: those that were never launched are not known"
short() { "$(command -v c++filt || echo cat)" | sed 's/>(.*/>/; s/^\([a-z_0-9]*\)(.*/\1/; s/^void //'; }
bad=0
for tool in "$@"; do
    out=("$logs/$tool".*.out) log=("$logs/$tool".*.log)
    sort -u "$logs/$tool".*.kernels 2>/dev/null >"$logs/$tool.launched"
    reports ours "${log[@]}" >"$logs/$tool.ours"
    reports theirs "${log[@]}" >"$logs/$tool.theirs"
    reports arrive "${log[@]}" >"$logs/$tool.arrive"
    passed=$(count '^\[       OK \]' "${out[@]}")
    failed=$(cat "${out[@]}" | awk '/^\[  FAILED  \] .* listed below/ { n += $4 } END { print n + 0 }')
    unfinished=$(count . "$logs/$tool".*.unfinished)
    ours=$(wc -l <"$logs/$tool.ours") theirs=$(wc -l <"$logs/$tool.theirs") launched=$(wc -l <"$logs/$tool.launched")
    echo "$tool: $passed tests passed, $failed failed, $unfinished of ${#out[@]} runs unfinished; $launched of $all kernels launched; reports:" \
        "$ours on ours, $(wc -l <"$logs/$tool.arrive") of arrivals, $theirs on the libraries'"
    [ "$failed$unfinished$ours" = 000 ] && [ "$passed" != 0 ] && [ "$launched" != 0 ] && { [ "$tool" != memcheck ] || [ "$theirs" = 0 ]; } || bad=1
done
for tool in "$@"; do
    sed 's/| by thread[^|]*//; s/| Address[^|]*//; s/0x[0-9a-f]*/0x/g' "$logs/$tool.ours" | sort | uniq -c | sort -rn | head -20 | cut -c1-400 | sed "s/^/$tool: /"
    grep -h '^\[  FAILED  \] [a-z_]*$' "$logs/$tool".*.out | sort -u | sed "s/^/$tool: /"
    comm -23 "$logs/all.kernels" "$logs/$tool.launched" | short | sed "s/^/never launched under $tool: /"
done
exit $bad
