#!/bin/sh
# check_plan.sh [MODEL ...]: `hydrahead plan` beside the peak of resident memory that the system measured: a prompt that fills CTX (8192) tokens and
# 32 decoded ones, by `run` and by `serve` (one slot, nothing kept of earlier prompts), and two training steps of 2 x 512 tokens
# (with TEACHER=MODEL one of align and one of distill, too). Prints both in MiB and the ratio; exit 1 when one is off by more than 5 %. Needs GNU time (/usr/bin/time) and curl. TRAIN=0 leaves training out; THREADS (2).
h=${HYDRAHEAD:-build/hydrahead}
threads=${THREADS:-2}
ctx=${CTX:-8192}
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
make_prompt() { # model: $tmp/prompt, of almost as many tokens as fit
    zcat models/nano/text_valid.txt.gz models/nano/text_train.txt.gz | head -c $((ctx * 8)) >"$tmp/prompt"
    for i in 1 2 3 4 5 6; do
        n=$("$h" tokenize "$1" --file "$tmp/prompt" --json | tr -dc ',' | wc -c)
        [ "$n" -le $((ctx - 64)) ] && return
        bytes=$(wc -c <"$tmp/prompt")
        head -c $((bytes * (ctx - 70) / n - 8)) "$tmp/prompt" >"$tmp/shorter" && mv "$tmp/shorter" "$tmp/prompt"
    done
}
serve() { # model: the peak in KiB
    mkfifo "$tmp/port"
    "$h" serve "$1" --ctx "$ctx" --slots 1 --cache-bytes 0 --threads "$threads" --port 0 -q >"$tmp/port" 2>"$tmp/log" &
    server=$!
    read -r port <"$tmp/port"
    {
        printf '{"max_tokens": 32, "temperature": 0, "prompt": "'
        sed 's/[\\"]/\\&/g' "$tmp/prompt" | tr -d '\000-\011\013-\037' | sed ':a;N;$!ba;s/\n/\\n/g'
        printf '"}'
    } | tr -d '\n' >"$tmp/body"
    curl -s "http://127.0.0.1:$port/v1/completions" --data-binary "@$tmp/body" >"$tmp/answer"
    sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/$server/status"
    grep -o '"usage":{[^}]*' "$tmp/answer" >&2 || cat "$tmp/answer" >&2
    kill "$server"
    wait "$server"
    rm "$tmp/port"
}
for model in "$@"; do
    make_prompt "$model"
    "$h" plan "$model" --ctx "$ctx" --threads "$threads" --json >"$tmp/plan" || exit 1
    /usr/bin/time -f '%M %e' -o "$tmp/peak" "$h" run "$model" --file "$tmp/prompt" --max-new 32 --context "$ctx" --threads "$threads" -q >"$tmp/out" || exit 1
    read -r peak seconds <"$tmp/peak"
    compare "$model: run, $ctx tokens of context" "$(field "$tmp/plan")" "$peak"
    echo "    $seconds s"
    compare "$model: serve, $ctx tokens of context" "$(field "$tmp/plan")" "$(serve "$model")"
    [ "${TRAIN:-1}" = 0 ] && continue
    "$h" plan "$model" --train --ctx 512 --batch 2 --threads "$threads" --json >"$tmp/plan" || exit 1
    zcat models/nano/text_valid.txt.gz | head -c 60000 >"$tmp/text"
    /usr/bin/time -f %M -o "$tmp/peak" "$h" train "$model" --stage extend --data "$tmp/text" --length 512 --batch 2 --micro-tokens 1024 --steps 2 \
        --save-every 0 --threads "$threads" -q --out "$tmp/trained" >"$tmp/out" || exit 1
    compare "$model: train, 2 x 512 tokens" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
    rm -rf "$tmp/trained"
    for stage in ${TEACHER:+align distill}; do
        "$h" plan "$model" --train --stage $stage --teacher "$TEACHER" --ctx 512 --batch 2 --threads "$threads" --json >"$tmp/plan" || exit 1
        /usr/bin/time -f %M -o "$tmp/peak" "$h" train "$model" --stage $stage --teacher "$TEACHER" --data "$tmp/text" --length 512 --batch 2 --micro-tokens 1024 \
            --steps 1 --save-every 0 --threads "$threads" -q --out "$tmp/trained" >"$tmp/out" || exit 1
        compare "$model: $stage, 2 x 512 tokens" "$(field "$tmp/plan")" "$(tail -n 1 "$tmp/peak")"
        rm -rf "$tmp/trained"
    done
done
exit $bad
