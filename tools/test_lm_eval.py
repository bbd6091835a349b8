#!/usr/bin/env python3
"""test_lm_eval.py HYDRAHEAD [MODEL [TOKENIZER [FILE]]]: lm-evaluation-harness, unmodified, against `hydrahead serve MODEL` (nano) by its model local-completions, on
multiple-choice items of FILE (tests/server/choice.jsonl); its scores must equal those of `hydrahead eval choice` on the same items. TOKENIZER: a tokenizer.json
(models/nano/tokenizer.json). For `make test-clients`; needs the packages lm_eval and transformers."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

program, model, tokenizer, items = (sys.argv[1:] + ["nano", "models/nano/tokenizer.json", "tests/server/choice.jsonl"][len(sys.argv) - 2:])[:4]
TASK = """task: choice
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{query}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
"""

with tempfile.TemporaryDirectory() as d:
    subprocess.run([program, "eval", "choice", "m=" + model, "--dtype", "f32", "--file", items, "--json", d + "/ours.json", "-q"], check=True, stdout=subprocess.DEVNULL)
    ours = json.load(open(d + "/ours.json"))["models"]["m"]
    ours = ours[os.path.basename(items).split(".")[0]]
    open(d + "/choice.yaml", "w").write(TASK % os.path.abspath(items))
    os.mkdir(d + "/tokenizer")
    shutil.copy(tokenizer, d + "/tokenizer/tokenizer.json")
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}, open(d + "/tokenizer/tokenizer_config.json", "w"))
    server = subprocess.Popen([program, "serve", model, "--dtype", "f32", "--port", "0", "--ctx", "512", "-q"], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1/completions"
        args = f"model=m,base_url={url},num_concurrent=4,max_retries=1,max_length=512,tokenized_requests=True,tokenizer_backend=huggingface,tokenizer={d}/tokenizer"
        subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", args, "--tasks", "choice", "--include_path", d, "--output_path", d + "/out"],
                       check=True, env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": d + "/hf", "TOKENIZERS_PARALLELISM": "false"})
    finally:
        server.terminate()
        assert server.wait(30) == 0
    found = [os.path.join(where, f) for where, _, files in os.walk(d + "/out") for f in files if f.startswith("results")]
    theirs = json.load(open(found[0]))["results"]["choice"]

for ours_name, name in (("acc", "acc,none"), ("acc_norm", "acc_norm,none")):
    assert abs(ours[ours_name] - theirs[name]) < 1e-9, (ours, theirs)
print(f"lm_eval: acc {theirs['acc,none']:.3f} and acc_norm {theirs['acc_norm,none']:.3f}, as hydrahead eval has it")
