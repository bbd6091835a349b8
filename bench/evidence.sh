#!/bin/bash
# evidence.sh MODEL DATA OUT WHAT...: the paper's contrast on a real checkpoint, step by step; every step is skipped when its result is there, and every long
# one goes on where it was stopped, so the same line can be given again until all is done.
#
#   MODEL  a checkpoint (SmolLM2-135M-Instruct), DATA  a folder with text/ and bench/ (train_*.txt.gz, valid_books.txt.gz, *.jsonl), OUT  where all goes
#   WHAT   teacher teacher_yarn4 causal_3to1 random_3to1 layerwise_3to1 causal_7to1 ...: models to make (up to four hybrids, side by side) and to measure;
#          or `ablations`: 15 hybrids after 10 M tokens each, in OUT/ablations, every group trained while the one before is measured
#
# Settings: DEVICE (cuda), TOKENS (50e6), ALIGN_TOKENS (a sixth of them), STRETCH_TOKENS (0) of further distilling at STRETCH_LENGTHS, EXTEND_TOKENS (0) at
# EXTEND_LENGTHS with EXTEND_NEEDLES (NEEDLE_SHARE) of needle documents, BATCH, LENGTHS, NEEDLE_SHARE (0.2), NEEDLE_FORMS (all), LR, ALIGN_LR,
# STEPS_ONLY=train|eval, MEASURES (ruler choice perplexity), LANES (1: models measured at once), SAMPLES (64), LONG_SAMPLES (32), ANYWHERE (set: every sample
# has a text of its own), SHORT (lengths with SAMPLES), LONG (lengths with LONG_SAMPLES, spaces between), CHOICE_LIMIT (0: all), HYDRAHEAD
# (build-cuda/hydrahead).
set -euo pipefail
shopt -s inherit_errexit
model=$1 data=$2 out=$3
shift 3
hh=${HYDRAHEAD:-build-cuda/hydrahead}
device="--seed ${SEED:-0}"
[ "${DEVICE:-cuda}" = cpu ] || device+=" --device ${DEVICE:-cuda}"
tokens=$(printf %.0f "${TOKENS:-50e6}")
align_tokens=$(printf %.0f "${ALIGN_TOKENS:-$((tokens / 6))}")
stretch_tokens=$(printf %.0f "${STRETCH_TOKENS:-0}")
extend_tokens=$(printf %.0f "${EXTEND_TOKENS:-0}")
mkdir -p "$out"
say() { echo "+ $*" >&2; "$@"; }

# Half books, a third modern English, a sixth Wikipedia; needle documents have NEEDLE_SHARE of all sequences.
books=("$data"/text/train_books_0*.txt.gz)
mixture=(--data "$data/text/train_modern.txt.gz=2" --data "$data/text/train_wikipedia.txt.gz=1" --cache "$out/tokens")
for f in "${books[@]}"; do mixture+=(--data "$f=$(awk "BEGIN { print 3 / ${#books[@]} }")"); done
needles() { [ "$1" = 0 ] || echo "--needles $(awk "BEGIN { print 6 * $1 / (1 - $1) }") --needle-forms ${NEEDLE_FORMS:-all}"; }
share=${NEEDLE_SHARE:-0.2}

# Where the scores that choose a name's heads stand, made when they do not.
probe() {
    local corruption=both
    case $1 in *__value) corruption=value ;; *__key) corruption=key ;; esac
    local dir=$out/probe
    [ $corruption = both ] || dir+=-$corruption
    [ -f "$dir/heads.json" ] || say "$hh" probe "$model" --length "${PROBE_LENGTH:-1024}" --samples "${PROBE_SAMPLES:-8}" --senders 32 --corruption $corruption $device --out "$dir" >&2
    echo "$dir/heads.json"
}

# name -> options of select. What stands behind "__" in a name is an ablation: another conversion, or another probe.
selection() {
    case ${1%%__*} in
    causal_3to1) echo "--ratio 3:1 --strategy global" ;;
    causal_7to1) echo "--ratio 7:1 --strategy global" ;;
    random_3to1) echo "--ratio 3:1 --strategy global-random" ;;
    random_7to1) echo "--ratio 7:1 --strategy global-random" ;;
    layerwise_3to1) echo "--ratio 3:1 --strategy layerwise" ;;
    layer_random_3to1) echo "--ratio 3:1 --strategy layer-random" ;;
    fixed_3to1) echo "--ratio 3:1 --strategy fixed" ;;
    *) echo "evidence.sh: no model is called $1" >&2; exit 2 ;;
    esac
}

# name -> options of convert
conversion() {
    local scale="--log-scale-base 500 --log-scale-in-training"
    case $1 in
    *__none) echo "$scale --beta-scale 2 --fusion none" ;;
    *__norm) echo "$scale --beta-scale 2 --fusion norm" ;;
    *__nologscale) echo "--log-scale-base 0 --beta-scale 2" ;;
    *__logscale_later) echo "--log-scale-base 500 --beta-scale 2" ;;
    *__nogate) echo "$scale --beta-scale 2 --no-fa-gate" ;;
    *) echo "$scale --beta-scale 2" ;;
    esac
}

# distil OUT TOKENS LENGTHS BATCH LR NAME=STUDENT...
distil() {
    say "$hh" train "${@:6}" --teacher "$model" --stage distill "${mixture[@]}" $(needles "$share") --length "$3" --batch "$4" --micro-tokens "${MICRO:-65536}" \
        --tokens "$2" --lr "$5" --save-every "${SAVE_EVERY:-400}" --save-dtype bf16 $device --out "$1"
}

# The hybrid of each name, then all of them trained side by side: the same sequences, one forward of the teacher.
make() {
    local name group=$out/$(IFS=+; echo "$*") hybrids=() aligned=() distilled=() stretched=()
    for name in "$@"; do
        local dir=$out/plans/$name heads
        heads=$(probe "$name")
        [ -f "$dir/plan.json" ] || { mkdir -p "$dir"; say "$hh" select "$heads" $(selection "$name") --seed 1 --out "$dir/plan.json"; }
        [ -f "$dir/hybrid/config.json" ] || say "$hh" convert "$model" --plan "$dir/plan.json" $(conversion "$name") $device --out "$dir/hybrid"
        hybrids+=("$name=$dir/hybrid") aligned+=("$name=$group/align/$name") distilled+=("$name=$group/distill/$name") stretched+=("$name=$group/stretch/$name")
    done
    say "$hh" train "${hybrids[@]}" --teacher "$model" --stage align "${mixture[@]}" $(needles "$share") --length "${ALIGN_LENGTHS:-512,1024}" --batch "${ALIGN_BATCH:-64}" \
        --micro-tokens "${MICRO:-65536}" --tokens "$align_tokens" --lr "${ALIGN_LR:-1e-3}" --save-every 0 $device --out "$group/align"
    distil "$group/distill" "$((tokens - align_tokens))" "${LENGTHS:-512,1024,2048}" "${BATCH:-32}" "${LR:-1e-3}" "${aligned[@]}"
    if [ "$stretch_tokens" != 0 ]; then
        distil "$group/stretch" "$stretch_tokens" "${STRETCH_LENGTHS:-1024,2048,4096,8192}" "${STRETCH_BATCH:-8}" "${STRETCH_LR:-3e-4}" "${distilled[@]}"
        distilled=("${stretched[@]}")
    fi
    [ "$extend_tokens" != 0 ] || return 0
    say "$hh" train "${distilled[@]}" --stage extend "${mixture[@]}" $(needles "${EXTEND_NEEDLES:-$share}") --length "${EXTEND_LENGTHS:-8192,16384}" --batch "${EXTEND_BATCH:-8}" --micro-tokens "${MICRO:-65536}" \
        --tokens "$extend_tokens" --lr "${EXTEND_LR:-1e-4}" --save-every 0 --save-dtype bf16 $device --out "$group/extend"
}

# Where a hybrid's last stage left it.
trained() {
    local dir
    for dir in "$out"/*/{extend,stretch,distill}/"$1"; do [ ! -d "$dir" ] || { echo "$dir"; return; }; done
    echo "evidence.sh: $1 has not been trained" >&2
    return 1
}

# The figures of one model: NAME PATH [options that all measures take].
measure() {
    local name=$1 path=$2 stretch=${3:-} length files=()
    local s="$out/summary.json" e=$out/eval ruler=(--tasks "${TASKS:-$all_tasks}" --haystack "$data/text/valid_books.txt.gz" ${ANYWHERE:+--haystack-anywhere})
    for f in arc_easy arc_challenge hellaswag_1000 piqa boolq winogrande lambada_openai; do files+=(--file "$data/bench/$f.jsonl"); done
    mkdir -p "$e"
    once() { # FILE MEASURE OPTIONS...: nothing when the result is there
        [[ " ${MEASURES:-ruler choice perplexity} " != *" $2 "* || -f "$e/$name-$1.json" ]] ||
            say "$hh" eval "$2" "$name=$path" "${@:3}" $stretch $device --json "$e/$name-$1.json" --summary "$s"
    }
    length=${SHORT-1024,2048,4096,8192}
    [ -z "$length" ] || once short ruler "${ruler[@]}" --lengths "$length" --samples "${SAMPLES:-64}"
    once choice choice "${files[@]}" --limit "${CHOICE_LIMIT:-0}"
    once perplexity perplexity --file "$data/bench/wikitext2_test.raw" --length 2048
    for length in ${LONG-16384 32768 65536}; do once "$length" ruler "${ruler[@]}" --lengths "$length" --samples "${LONG_SAMPLES:-32}"; done
}
all_tasks=niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_multikey_3,niah_multivalue,niah_multiquery

if [ "$*" = ablations ]; then
    # Every group is this script over again, with its own share of needle documents.
    export TOKENS=${TOKENS:-10e6} MICRO=${MICRO:-32768} SHORT=${SHORT-1024,4096,16384} LONG=${LONG-} SAMPLES=${SAMPLES:-32} MEASURES=${MEASURES:-ruler perplexity} LANES=${LANES:-2}
    export TASKS=${TASKS:-niah_single_1,niah_single_2,niah_single_3,niah_multikey_1} SAVE_EVERY=${SAVE_EVERY:-0}
    mkdir -p "$out/ablations"
    [ ! -d "$out/probe" ] || [ -d "$out/ablations/probe" ] || cp -r "$out/probe" "$out/ablations/probe"
    while read -r share names; do
        NEEDLE_SHARE=$share STEPS_ONLY=train "$0" "$model" "$data" "$out/ablations" $names
        STEPS_ONLY=eval "$0" "$model" "$data" "$out/ablations" $names &
    done <<'END'
0.25 causal_3to1 causal_3to1__none causal_3to1__norm causal_3to1__nologscale
0.25 causal_3to1__logscale_later causal_3to1__nogate causal_3to1__value causal_3to1__key
0.25 random_3to1 layerwise_3to1 layer_random_3to1 fixed_3to1
0 causal_3to1__needles00
0.1 causal_3to1__needles10
0.5 causal_3to1__needles50
END
    for job in $(jobs -p); do wait "$job"; done
    exit 0
fi

students=()
for name in "$@"; do [[ $name == teacher* ]] || students+=("$name"); done
[ "${STEPS_ONLY:-train}" != train ] || [ ${#students[@]} = 0 ] || make "${students[@]}"
[ "${STEPS_ONLY:-eval}" = eval ] || exit 0
for name in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "${LANES:-1}" ]; do wait -n; done
    case $name in
    teacher) measure teacher "$model" ;;
    teacher_yarn4) measure teacher_yarn4 "$model" "--rope-scaling yarn:4" ;;
    *) dir=$(trained "$name"); measure "$name" "$dir" ;;
    esac &
done
for job in $(jobs -p); do wait "$job"; done
