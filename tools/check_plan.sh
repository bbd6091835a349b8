#!/bin/sh
# check_plan.sh [MODEL ...]: `hydrahead plan` beside the peak of resident memory that the system measured: a prompt that fills 8,192 tokens and 32
# decoded ones, and two training steps of 2 x 512 tokens. Prints both in MiB and the ratio; exit 1 when one is off by more than 5 %.
# Needs GNU time (/usr/bin/time). TRAIN=0 leaves training out; THREADS (2).
h=${HYDRAHEAD:-build/hydrahead}
threads=${THREADS:-2}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
[ $# = 0 ] && set -- nano
bad=0
field() { sed -n 's/.*"total": *\([0-9]*\).*/\1/p' "$1"; }
compare() { # what, planned bytes, measured KiB
    awk -v what="$1" -v plan="$2" -v peak="$3" 'BEGIN {
        p = plan / 1048576; m = peak / 1024; r = p / m
        printf "%-44s plan %8.1f MiB, peak %8.1f MiB, ratio %.3f\n", what, p, m, r
        exit r < 0.95 || r > 1.05 }' || bad=1
}
zcat models/nano/text_valid.txt.gz | head -c 60000 >"$tmp/text"
for model in "$@"; do
    "$h" tokenize "$model" --file "$tmp/text" --json | tr -dc '0-9,\n' | cut -d, -f1-8100 >"$tmp/ids"
    "$h" tokenize "$model" --decode "$(cat "$tmp/ids")" >"$tmp/prompt"
    "$h" plan "$model" --ctx 8192 --threads "$threads" --json >"$tmp/plan" || exit 1
    /usr/bin/time -f %M -o "$tmp/peak" "$h" run "$model" --file "$tmp/prompt" --max-new 32 --context 8192 --threads "$threads" -q >"$tmp/out" || exit 1
    compare "$model: run, 8192 tokens of context" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
    [ "${TRAIN:-1}" = 0 ] && continue
    "$h" plan "$model" --train --ctx 512 --batch 2 --threads "$threads" --json >"$tmp/plan" || exit 1
    /usr/bin/time -f %M -o "$tmp/peak" "$h" train "$model" --stage extend --data "$tmp/text" --length 512 --batch 2 --micro-tokens 1024 --steps 2 \
        --save-every 0 --threads "$threads" -q --out "$tmp/trained" >"$tmp/out" || exit 1
    compare "$model: train, 2 x 512 tokens" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
    rm -rf "$tmp/trained"
done
exit $bad
