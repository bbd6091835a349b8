#!/bin/sh
# Who may include whom: a file under src/ includes headers of its own folder and of lower floors only (text/ stands between the second and the third, for it reads the
# vocabularies of GGUF files); server/ sees hydrahead.h and base/ alone.
# And what may be called where: allocation in base/memory.c, the environment in base/env.c, exit in cli/.
find src -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
    xargs -0 grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' /dev/null |
    awk -F: '
BEGIN {
    n = split("base 0 tensor 1 report 1 ops 2 format 2 text 2.5 model 3 data 3 session 4 train 4 probe 4 convert 4 eval 5 api 5 " \
              "demo 6 server 6 cli 7", w, " ")
    for (i = 1; i < n; i += 2) floor[w[i]] = w[i + 1]
}
{
    split($1, part, "/"); room = part[2]
    match($3, /"[^"]*"/); header = substr($3, RSTART + 1, RLENGTH - 2)
    slash = index(header, "/"); other = slash ? substr(header, 1, slash - 1) : ""
    where = $1 ":" $2
    if (!(room in floor)) { print where ": src/" room " has no floor in tools/check_floors.sh"; bad = 1; next }
    if (header == "hydrahead.h") {
        if (room != "api" && floor[room] < 6 && $1 != "src/base/status.h") { # which has hh_code and hh_error from there
            print where ": the public header is for api/, server/ and cli/"; bad = 1
        }
        next
    }
    if (!(other in floor)) { print where ": \"" header "\" is not named from src/"; bad = 1; next }
    if (other != room && floor[other] >= floor[room]) {
        print where ": " room "/ (floor " floor[room] ") must not include " other "/ (floor " floor[other] ")"; bad = 1
    }
    if (room == "server" && other != "server" && other != "base") { print where ": server/ sees hydrahead.h and base/ alone"; bad = 1 }
}
END { exit bad }' || bad=1

# forbidden PATTERN ALLOWED WHAT: comments and strings are cut away first, roughly.
forbidden() {
    hits=$(grep -rnE --include='*.c' --include='*.h' "(^|[^_[:alnum:].>])($1)[[:space:]]*\(" src |
        sed 's|/\*.*\*/||; s|"[^"]*"||g' | grep -E "(^|[^_[:alnum:].>])($1)[[:space:]]*\(" | grep -vE "^src/($2)|:[0-9]+:[[:space:]]*\*")
    [ -z "$hits" ] && return
    echo "$hits"
    echo "^ $3"
    bad=1
}
forbidden 'malloc|calloc|realloc|strdup|asprintf|posix_memalign|aligned_alloc' 'base/memory\.c' 'memory comes from base/memory.h'
forbidden 'getenv|secure_getenv' 'base/env\.c' 'environment variables are read in base/env.c'
forbidden 'exit|_exit|abort' 'cli/|base/status\.c|base/memory\.c' 'only cli/ ends the program'
forbidden 'strcpy|strcat|sprintf|gets|strtok|rand|srand|atoi|atof|setlocale' '-' 'not in this program: unbounded, unchecked, or global state'
# Ops run in guarded sections, also those that a GPU's backend prepares when it meets a shape for the first time.
hits=$(grep -nE '(^|[^_[:alnum:]])hh_(re)?alloc\(' src/ops/cuda/*.cu src/ops/cuda/*.h src/ops/cuda/*.cuh | grep -vE '^src/ops/cuda/(backend|comm_nccl)\.cu')
[ -z "$hits" ] || { echo "$hits"; echo "^ an op may not allocate under the guard: hh_alloc_unguarded"; bad=1; }
exit ${bad:-0}
