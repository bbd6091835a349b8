#!/bin/bash
# evidence.sh MODEL DATA OUT WHAT...: the paper's contrast on a real checkpoint, step by step; every step is skipped when its result is there, and every long
# one goes on where it was stopped, so the same line can be given again until all is done.
#
#   MODEL  a checkpoint (SmolLM2-135M-Instruct), DATA  a folder with text/ and bench/ (train_*.txt.gz, valid_books.txt.gz, *.jsonl), OUT  where all goes
#   WHAT   teacher teacher_yarn4 causal_3to1 random_3to1 layerwise_3to1 causal_7to1 ...: models to make and measure, in this order
#
# Settings: DEVICE (cuda), TOKENS (50e6), ALIGN_TOKENS (a sixth of them), BATCH, LENGTHS, NEEDLES (weight beside the texts'), NEEDLE_FORMS, LR, ALIGN_LR, STEPS_ONLY=train|eval, SAMPLES (64), LONG_SAMPLES (32),
# SHORT (lengths with SAMPLES), LONG (lengths with LONG_SAMPLES), CHOICE_LIMIT (0: all), HYDRAHEAD (build-cuda/hydrahead).
set -euo pipefail
model=$1 data=$2 out=$3
shift 3
hh=${HYDRAHEAD:-build-cuda/hydrahead}
device="--seed ${SEED:-0}"
[ "${DEVICE:-cuda}" = cpu ] || device+=" --device ${DEVICE:-cuda}"
tokens=$(printf %.0f "${TOKENS:-50e6}")
align_tokens=$(printf %.0f "${ALIGN_TOKENS:-$((tokens / 6))}")
mkdir -p "$out"
say() { echo "+ $*" >&2; "$@"; }

text=()
for f in "$data"/text/train_books_0*.txt.gz; do text+=(--data "$f=1"); done
text+=(--data "$data/text/train_modern.txt.gz=2" --data "$data/text/train_wikipedia.txt.gz=1")
mixture=("${text[@]}" --cache "$out/tokens")
[ "${NEEDLES:-1.5}" = 0 ] || mixture+=(--needles "${NEEDLES:-1.5}" --needle-forms "${NEEDLE_FORMS:-all}")

probe() {
    [ -f "$out/probe/heads.json" ] && return
    say "$hh" probe "$model" --length "${PROBE_LENGTH:-1024}" --samples "${PROBE_SAMPLES:-8}" --senders 32 --corruption both $device --out "$out/probe"
}

# name -> options of select
selection() {
    case $1 in
    causal_3to1*) echo "--ratio 3:1 --strategy global" ;;
    causal_7to1*) echo "--ratio 7:1 --strategy global" ;;
    random_3to1) echo "--ratio 3:1 --strategy global-random" ;;
    layerwise_3to1) echo "--ratio 3:1 --strategy layerwise" ;;
    layer_random_3to1) echo "--ratio 3:1 --strategy layer-random" ;;
    fixed_3to1) echo "--ratio 3:1 --strategy fixed" ;;
    *) echo "evidence.sh: no model is called $1" >&2; exit 2 ;;
    esac
}

make() {
    local name=$1 dir=$out/$1
    probe
    [ -f "$dir/plan.json" ] || { mkdir -p "$dir"; say "$hh" select "$out/probe/heads.json" $(selection "$name") --seed 1 --out "$dir/plan.json"; }
    [ -f "$dir/hybrid/config.json" ] ||
        say "$hh" convert "$model" --plan "$dir/plan.json" --log-scale-base 500 --log-scale-in-training --beta-scale 2 ${CONVERT:-} --seed 0 --out "$dir/hybrid"
    say "$hh" train "$dir/hybrid" --teacher "$model" --stage align "${mixture[@]}" --length "${ALIGN_LENGTHS:-512,1024}" --batch "${ALIGN_BATCH:-64}" \
        --micro-tokens "${MICRO:-65536}" --tokens "$align_tokens" --lr "${ALIGN_LR:-1e-3}" --save-every 100 $device --out "$dir/align"
    say "$hh" train "$dir/align" --teacher "$model" --stage distill "${mixture[@]}" --length "${LENGTHS:-512,1024,2048}" --batch "${BATCH:-64}" \
        --micro-tokens "${MICRO:-65536}" --tokens "$((tokens - align_tokens))" --lr "${LR:-5e-4}" --save-every 100 --save-dtype bf16 $device --out "$dir/distill"
}

measure() {
    local name=$1 path=$2 stretch=${3:-}
    local s="$out/summary.json" haystack="$data/text/valid_books.txt.gz" e=$out/eval
    mkdir -p "$e"
    [ -f "$e/$name-short.json" ] || say "$hh" eval ruler "$name=$path" --tasks "${TASKS:-$all_tasks}" --lengths "${SHORT:-1024,2048,4096,8192}" --samples "${SAMPLES:-64}" \
        --haystack "$haystack" $stretch $device --json "$e/$name-short.json" --summary "$s"
    [ -f "$e/$name-choice.json" ] || say "$hh" eval choice "$name=$path" $(for f in arc_easy arc_challenge hellaswag_1000 piqa boolq winogrande lambada_openai; do
        echo "--file $data/bench/$f.jsonl"; done) --limit "${CHOICE_LIMIT:-0}" $stretch $device --json "$e/$name-choice.json" --summary "$s"
    [ -f "$e/$name-perplexity.json" ] || say "$hh" eval perplexity "$name=$path" --file "$data/bench/wikitext2_test.raw" --length 2048 $stretch $device \
        --json "$e/$name-perplexity.json" --summary "$s"
    [ -z "${LONG-16384,32768,65536}" ] || [ -f "$e/$name-long.json" ] || say "$hh" eval ruler "$name=$path" --tasks "${TASKS:-$all_tasks}" --lengths "${LONG-16384,32768,65536}" \
        --samples "${LONG_SAMPLES:-32}" --haystack "$haystack" $stretch $device --json "$e/$name-long.json" --summary "$s"
}
all_tasks=niah_single_1,niah_single_2,niah_single_3,niah_multikey_1,niah_multikey_2,niah_multikey_3,niah_multivalue,niah_multiquery

for name in "$@"; do
    case $name in
    teacher) measure teacher "$model" ;;
    teacher_yarn4) measure teacher_yarn4 "$model" "--rope-scaling yarn:4" ;;
    *)
        [ "${STEPS_ONLY:-train}" = train ] && make "$name"
        [ "${STEPS_ONLY:-eval}" = eval ] && measure "$name" "$out/$name/distill"
        ;;
    esac
done
