#!/bin/sh
# Every header compiles alone, in both precisions; the public one also as C++ and without the library's own include path.
flags="-std=c11 -D_GNU_SOURCE -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Wno-unused-function -Wno-unused-const-variable -fopenmp"
bad=0
try() {
    echo "#include \"$header\"" | "$@" - 2>/tmp/check_headers.$$ || {
        echo "$header does not compile alone ($*):"
        cat /tmp/check_headers.$$
        bad=1
    }
}
for path in $(git ls-files 'src/*.h' 'tests/*.h'); do
    header=${path#src/} header=${header#tests/} isa=
    case $path in src/ops/cuda/*) continue ;; esac # CUDA C++: nvcc compiles them with the kernels
    case $path in src/ops/simd/*) [ "$(uname -m)" = x86_64 ] || continue
        isa="-DHH_ISA=avx512_vnni -mavx512vnni -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mfma -mf16c -mbmi2" ;;
    esac
    try gcc $flags $isa -Isrc -Iinclude -Itests -x c
    [ -n "$isa" ] || try gcc $flags -DHH_REAL_DOUBLE -Isrc -Iinclude -Itests -x c
done
for path in $(git ls-files 'include/*.h'); do
    header=${path#include/}
    try gcc -std=c99 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Iinclude -x c
    try clang++ -std=c++11 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -Iinclude -x c++
done
rm -f /tmp/check_headers.$$
exit $bad
