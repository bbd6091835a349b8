#!/bin/sh
# check_plan.sh [MODEL ...]: `hydrahead plan` beside the peak of resident memory that the system measured: a prompt that fills 8,192 tokens and 32
# decoded ones; two training steps of 2 x 512 tokens; the same of a hybrid that learns from MODEL. Prints both in MiB and the ratio; exit 1 when one is off
# by more than 5 %. Aligning may stay below: a layer's activations are places that not all of it touches.
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
        exit r < 0.95 || (r > 1.05 && what !~ /align/) }' || bad=1
}
# What, the student, and the options of its loss: plan beside train.
train() {
    what=$1 student=$2
    shift 2
    "$h" plan "$student" --train "$@" --ctx 512 --batch 2 --threads "$threads" --json >"$tmp/plan" || exit 1
    /usr/bin/time -f %M -o "$tmp/peak" "$h" train "$student" "$@" --data "$tmp/text" --length 512 --batch 2 --micro-tokens 1024 --steps 2 \
        --save-every 0 --threads "$threads" -q --out "$tmp/trained" >"$tmp/out" || exit 1
    compare "$what" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
    rm -rf "$tmp/trained"
}
hybrid() {
    rm -rf "$tmp/hybrid"
    "$h" probe "$1" --tasks niah_single_2 --length 256 --samples 1 --senders 0 -q --out "$tmp/probe" >"$tmp/out" || exit 1
    "$h" select "$tmp/probe/heads.json" --ratio 7:1 --out "$tmp/plan.json" >"$tmp/out" || exit 1
    "$h" convert "$1" --plan "$tmp/plan.json" --gamma 1 -q --out "$tmp/hybrid" >"$tmp/out" || exit 1
}
zcat models/nano/text_valid.txt.gz | head -c 60000 >"$tmp/text"
for model in "$@"; do
    "$h" tokenize "$model" --file "$tmp/text" --json | tr -dc '0-9,\n' | cut -d, -f1-8100 >"$tmp/ids"
    "$h" tokenize "$model" --decode "$(cat "$tmp/ids")" >"$tmp/prompt"
    "$h" plan "$model" --ctx 8192 --threads "$threads" --json >"$tmp/plan" || exit 1
    /usr/bin/time -f %M -o "$tmp/peak" "$h" run "$model" --file "$tmp/prompt" --max-new 32 --context 8192 --threads "$threads" -q >"$tmp/out" || exit 1
    compare "$model: run, 8192 tokens of context" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
    [ "${TRAIN:-1}" = 0 ] && continue
    train "$model: train, 2 x 512 tokens" "$model" --stage extend
    hybrid "$model"
    train "$model: align, 2 x 512 tokens" "$tmp/hybrid" --stage align --teacher "$model"
    train "$model: distill, 2 x 512 tokens" "$tmp/hybrid" --stage distill --teacher "$model"
done
exit $bad
