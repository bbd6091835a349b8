#!/bin/sh
# check_warnings.sh COMPILER: every source of library, program, tests and benchmarks without a warning, in both precisions. Only the syntax is
# looked at (what needs the optimiser is seen by the build with WERROR=1 that continuous integration does).
compiler=$1
command -v "$compiler" >/dev/null || { echo "$compiler is not there"; exit 1; }
flags="-std=c11 -D_GNU_SOURCE -fopenmp -fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
       -Wmissing-prototypes -Wvla -Werror -Isrc -Iinclude"
[ "$compiler" = gcc ] || flags="$flags -Wno-string-conversion"
mpi=$(pkg-config --cflags ompi-c 2>/dev/null | sed 's/-I/-isystem /g')
sources() { # what needs MPI is looked at where that is installed
    git ls-files 'src/*.c' | if [ -n "$mpi" ]; then cat; else grep -v '^src/tensor/comm_mpi\.c$'; fi
}
jobs=$(nproc 2>/dev/null || echo 2)
bad=0
each() { # each FLAGS...: reads paths
    xargs -r -P "$jobs" -n 8 "$compiler" $flags "$@"
}
sources | grep -v '^src/ops/simd/' | each $mpi || bad=1
sources | grep -vE '^src/(ops/simd|cli|api|server)/' | each $mpi -DHH_REAL_DOUBLE || bad=1
if [ "$(uname -m)" = x86_64 ]; then
    git ls-files 'src/ops/simd/*.c' | each -DHH_ISA=avx2 -mavx2 -mfma -mf16c -mbmi2 || bad=1
    avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mfma -mf16c -mbmi2"
    git ls-files 'src/ops/simd/*.c' | each -DHH_ISA=avx512 $avx512 || bad=1
    git ls-files 'src/ops/simd/*.c' | each -DHH_ISA=avx512_vnni $avx512 -mavx512vnni || bad=1
fi
git ls-files 'tests/*/test_*.c' 'tests/support/*.c' 'tests/fuzz/*.c' 'bench/*.c' 'examples/*.c' | each -Itests -Wno-missing-prototypes || bad=1
git ls-files 'tests/*/double_*.c' | each -DHH_REAL_DOUBLE -Itests -Wno-missing-prototypes || bad=1
exit $bad
