#!/bin/sh
# make_nano.sh OUT [BOOKS ...]: makes nano again from text: OUT/nano, pretrained by `hydrahead train --stage pretrain` with the shipped configuration
# and tokenizer, and OUT/nano.json, its accuracy on needles with keys and numbers that were never trained on; then the demo with it.
# BOOKS are text files, plain or gzip; without any the shipped excerpt (6 MB), which is enough for retrieval but is seen many times over.
# Minutes on a GPU (DEVICE=cuda, the default), a day on a few processor cores. STEPS (3500) of 131,072 tokens; DEMO=0 leaves the demo out;
# HYDRAHEAD names the program. The same command continues a run that was cut. Ends with 1 when the model finds fewer than 95 % of the needles.
here=$(cd "$(dirname "$0")" && pwd)
h=${HYDRAHEAD:-build-cuda/hydrahead}
device=${DEVICE:-cuda}
out=$1
[ -n "$out" ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
shift
mkdir -p "$out/start" || exit 1
cp "$here/config.json" "$here/tokenizer.json" "$out/start/"
books=$# # half of all sequences are needle documents
set -- "$out/start" --stage pretrain $(for f; do printf -- '--data %s ' "$f"; done) --needles "${NEEDLES:-$((books > 1 ? books : 1))}"
"$h" train "$@" --length 256 --batch "${BATCH:-512}" --micro-tokens "${MICRO:-131072}" --steps "${STEPS:-3500}" --save-every 1000 --save-dtype bf16 \
    --device "$device" --out "$out/nano" || exit 1
for f in text_train.txt.gz text_valid.txt.gz; do cp "$here/$f" "$out/nano/"; done
"$h" eval ruler new="$out/nano" shipped="$here" --tasks niah_book --lengths 256 --samples "${SAMPLES:-256}" --device "$device" --json "$out/nano.json" || exit 1
"$h" eval perplexity new="$out/nano" shipped="$here" --file "$here/text_valid.txt.gz" --length 256 --limit 512 --device "$device" --json "$out/perplexity.json"
[ "${DEMO:-1}" = 0 ] || HYDRAHEAD_MODELS=$out "$h" demo --device "$device" --out "$out/demo" || exit 1
awk '/"new"/ { mine = 1 } mine && /"256"/ { gsub(/[^0-9.]/, "", $2); print "needles found:", $2; exit !($2 >= 0.95) }' "$out/nano.json"
