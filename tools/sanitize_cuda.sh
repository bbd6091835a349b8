#!/bin/bash
# sanitize_cuda.sh [TOOL...]: compute-sanitizer's memcheck, racecheck, initcheck and synccheck (or those named) over the CUDA tests that are small enough for
# it: a line for each program and tool with the tests it came through and what was found; logs in build-cuda/sanitizer. JOBS run at once (4), each for
# SECONDS at most (300); a program that runs out of them counts with what it had done. Fails when something was found in a kernel of ours: hazards in the
# libraries' own kernels (cuBLAS's nvjet_*, cutlass_*) are counted apart.
cs=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$cs" ] || { echo "compute-sanitizer was not found; it is part of NVIDIA's CUDA toolkit"; exit 1; }
[ $# = 0 ] && set -- memcheck racecheck initcheck synccheck
logs=build-cuda/sanitizer
mkdir -p "$logs"
rm -f "$logs"/*.log
# What is long without reaching other code: thousands of tokens, whole models.
export HYDRAHEAD_SKIP=${HYDRAHEAD_SKIP:-*long*}
one() {
    local program=$1 tool=$2 log rc
    log=$logs/$(basename "$program").$tool.log
    # Allocations that are refused on purpose are no fault of a kernel.
    timeout "${SECONDS_EACH:-300}" "$cs" --tool "$tool" --report-api-errors no --error-exitcode 99 "$program" >"$log" 2>&1
    rc=$?
    local theirs ours
    theirs=$(grep -cE '^========= .*(nvjet|cutlass|cublas)' "$log")
    ours=$(grep -E '^=========     (at|and (Read|Write) access at) |^========= (Error|Warning): (Race|Potential)|^=========     by thread' "$log" | grep -vcE 'nvjet|cutlass|cublas|by thread')
    echo "$(basename "$program") $tool: $(grep -c '\[       OK' "$log") tests passed$([ $rc = 124 ] && echo ", then the time was over"), $ours reports on kernels of ours, $theirs lines on the libraries'" | tee "$logs/$(basename "$program").$tool.line"
}
export -f one
export cs logs
for program in build-cuda/tests/cuda/test_cuda_*; do
    case $program in *.o | *.d) continue ;; esac
    for tool in "$@"; do printf '%s\0%s\0' "$program" "$tool"; done
done | xargs -0 -n 2 -P "${JOBS:-4}" bash -c 'one "$0" "$1"'
! grep -lvE ' 0 reports on kernels' "$logs"/*.line
