#!/bin/bash
# run_cuda.sh [OUT]: every benchmark of the GPU, each kernel beside its floor and, where Python has torch (FLA's want fla-core too), its peer in the same
# run; then whole models (bench/gpu_model.py). Everything is shown and kept in OUT (build-cuda/bench/results), a file a program; ends with the table of
# whole models. A figure of a whole model that stands in OUT is not measured again.
cd "$(dirname "$0")/.." || exit 1
out=${1:-build-cuda/bench/results} programs=build-cuda/bench/cuda
mkdir -p "$out"
build-cuda/hydrahead bench nano --contexts 64 --decode 4 --device cuda -q >/dev/null || exit 1 # says what is missing
peers=$(python3 -c 'import torch; print(torch.cuda.is_available())' 2>/dev/null)
[ "$peers" = True ] || echo "peers are left out: python3 has no torch with CUDA"
failed=
one() { # FILE SECONDS COMMAND...
    echo "== ${*:3}"
    timeout "$2" "${@:3}" 2>&1 | tee "$out/$1"
    [ "${PIPESTATUS[0]}" = 0 ] || failed="$failed $1"
}
peer() { [ "$peers" != True ] || one "$1.peer" 600 python3 "bench/peers/${@:2}"; }
one attention 300 $programs/bench_attention && peer attention attention.py
one gdn 300 $programs/bench_gdn && peer gdn fla_gdn.py 500
one gdn_bwd 300 $programs/bench_gdn_bwd && peer gdn_bwd fla_gdn_bwd.py 500
one products 300 $programs/bench_products && peer products torch_products.py
one loss 300 $programs/bench_loss && peer loss torch_heads.py
one rows 300 $programs/bench_rows && peer rows torch_rows.py
one models.log 3600 python3 bench/gpu_model.py --out "$out/models.jsonl"
python3 bench/gpu_model.py --table "$out/models.jsonl"
[ -z "$failed" ] || { echo "did not come to their end:$failed"; exit 1; }
