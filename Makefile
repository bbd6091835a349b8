# hydrahead: `make demo` and `make test` are all the set-up there is. `make help` lists the rest.
#
#   SAN=address|undefined|thread   a sanitizer build in its own folder (thread: clang and libomp)
#   HOSTILE=1                      failing allocator, NaN-filled memory
#   CUDA=1                         with the CUDA backend, in its own folder; needs nvcc. CUDA_ARCHS="80 90a" chooses GPUs
#   MPI=1                          training by several processes (mpirun), in its own folder; with CUDA=1 also NCCL, one
#                                  process a GPU
#   ARM=1                          for 64-bit ARM, by Debian's cross compiler, in its own folder; ARM_ROOT holds the
#                                  libraries (tools/make_arm_root.sh)
#   CC=clang                       another compiler, in its own folder
#   WERROR=1                       warnings are errors
#   V=1                            whole command lines
#
# Every source under src/ but src/cli/ goes into the library, and all but those behind the public header (src/api/,
# src/server/) also into a second one in double precision, the oracle of the gradient tests. src/ops/simd/*.c is compiled once for each instruction set.
# tests/*/test_*.c link against the first, tests/*/double_*.c against the second.

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(SAN),thread)
CC := clang
endif
ifdef ARM
ifeq ($(origin CC),file)
CC := aarch64-linux-gnu-gcc
endif
AR := aarch64-linux-gnu-ar
endif
ARCH    := $(if $(ARM),aarch64,$(shell uname -m))
VARIANT := $(if $(findstring clang,$(CC)),-clang)$(if $(SAN),-$(SAN))$(if $(HOSTILE),-hostile)$(if $(MPI),-mpi)$(if $(CUDA),-cuda)$(if $(ARM),-arm)
BUILD   ?= build$(VARIANT)
PREFIX  ?= /usr/local

PACKAGES := libdnnl-dev libjansson-dev libmicrohttpd-dev libpcre2-dev libutf8proc-dev zlib1g-dev libcmocka-dev pkg-config
CLANG_PACKAGES := clang libomp-dev
MPI_PACKAGES := libopenmpi-dev openmpi-bin
CHECK_PACKAGES := $(CLANG_PACKAGES) clang-format
ARM_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user mmdebstrap
ARM_ROOT ?= build-arm-root
PKG_CONFIG := $(if $(ARM),PKG_CONFIG_SYSROOT_DIR=$(ARM_ROOT) PKG_CONFIG_LIBDIR=$(ARM_ROOT)/usr/lib/aarch64-linux-gnu/pkgconfig) pkg-config
LIBS     := jansson libmicrohttpd libpcre2-8 libutf8proc zlib

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla $(if $(findstring clang,$(CC)),-Wno-string-conversion) $(if $(WERROR),-Werror)
OPT     ?= -O2
CFLAGS  ?= -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(OPT) -fno-math-errno -fopenmp -fPIC -fvisibility=hidden $(WARN) -Isrc -Iinclude \
             -MMD -MP $(SAN_CFLAGS) $(if $(HOSTILE),-DHH_HOSTILE) $(if $(ARM),--sysroot=$(ARM_ROOT)) $(CFLAGS)
LDLIBS  = -ldnnl $(shell $(PKG_CONFIG) --libs $(LIBS) 2>/dev/null) -lm

# gcc's warnings about uninitialised values are wrong where a sanitizer has changed the flow.
ifeq ($(SAN),address)
SAN_CFLAGS := $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized) -fsanitize=address -fno-omit-frame-pointer
else ifeq ($(SAN),undefined)
SAN_CFLAGS := $(if $(findstring clang,$(CC)),,-Wno-maybe-uninitialized) -fsanitize=undefined -fno-sanitize-recover=undefined
else ifeq ($(SAN),thread)
SAN_CFLAGS := -fsanitize=thread -fopenmp=libomp
endif

# src/ops/cuda/*.cu, by nvcc for the architectures named.
ifdef CUDA
CUDA_HOME  ?= /usr/local/cuda
NVCC       ?= $(CUDA_HOME)/bin/nvcc
CUDA_ARCHS ?= 90a
CU_SRC     := $(filter-out $(if $(MPI),,src/ops/cuda/comm_nccl.cu),$(sort $(wildcard src/ops/cuda/*.cu)))
CU_OBJ     := $(CU_SRC:src/%.cu=$(BUILD)/obj/%.o)
NVCC_FLAGS = -std=c++17 -O3 -lineinfo --expt-relaxed-constexpr -Xcompiler -fPIC,-Wall,-Wno-comment -Isrc -Iinclude -MMD -MP \
             $(if $(filter 90a,$(CUDA_ARCHS)),-DHH_CUDA_HAVE_90A) \
             $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) $(NVCCFLAGS)
CUDA_LDLIBS = -L$(CUDA_HOME)/lib64 $(if $(MPI),-lnccl) -lcublasLt -lcudart_static -ldl -lrt -lpthread -lstdc++
LDLIBS     += $(CUDA_LDLIBS)
endif

# MPI moves what several processes exchange; nothing else in the build needs it. MPI_CFLAGS and MPI_LIBS choose another
# MPI than Debian's.
ifdef MPI
MPI_CFLAGS ?= -DOMPI_SKIP_MPICXX $(patsubst -I%,-isystem %,$(shell pkg-config --cflags ompi-c 2>/dev/null))
MPI_LIBS   ?= $(shell pkg-config --libs ompi-c 2>/dev/null)
LDLIBS     += $(MPI_LIBS)
endif

# Instruction sets of src/ops/simd/: name and flags.
ifeq ($(ARCH),x86_64)
ISAS := avx2 avx512 avx512_vnni
else ifeq ($(ARCH),aarch64)
ISAS := neon neon_dotprod
endif
ISA_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mfma -mf16c -mbmi2 -mprefer-vector-width=512
ISA_avx512_vnni := $(ISA_avx512) -mavx512vnni
ISA_neon_dotprod := -march=armv8.2-a+dotprod

SRC     := $(sort $(shell find src -name '*.c'))
LIB_SRC := $(filter-out src/cli/% src/ops/simd/% $(if $(MPI),,src/tensor/comm_mpi.c),$(SRC))
SIMD_SRC := $(filter src/ops/simd/%,$(SRC))
CLI_SRC := $(filter src/cli/%,$(SRC))

LIB_OBJ := $(LIB_SRC:src/%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/server/chat_page.o $(foreach i,$(ISAS),$(SIMD_SRC:src/%.c=$(BUILD)/obj/$(i)/%.o))
DBL_OBJ := $(patsubst src/%.c,$(BUILD)/dbl/%.o,$(filter-out src/api/% src/server/%,$(LIB_SRC)))
CLI_OBJ := $(CLI_SRC:src/%.c=$(BUILD)/obj/%.o)

TEST_SRC   := $(filter-out tests/cuda/% $(if $(MPI),,tests/comm/%),$(sort $(wildcard tests/*/test_*.c)))
CUDA_TEST_SRC := $(if $(CUDA),$(sort $(wildcard tests/cuda/test_*.c)))
DOUBLE_SRC := $(sort $(wildcard tests/*/double_*.c))
TEST_BIN   := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%) $(DOUBLE_SRC:tests/%.c=$(BUILD)/tests/%)
CUDA_TEST_BIN := $(CUDA_TEST_SRC:tests/%.c=$(BUILD)/tests/%)
SUPPORT    := $(patsubst tests/%.c,$(BUILD)/obj/tests/%.o,$(wildcard tests/support/*.c))
DBL_SUPPORT := $(SUPPORT:$(BUILD)/obj/%=$(BUILD)/dbl/%)
FUZZ_BIN   := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
BENCH_BIN  := $(patsubst bench/%.c,$(BUILD)/bench/%,$(sort $(wildcard bench/*.c)))
CUDA_BENCH_BIN := $(if $(CUDA),$(patsubst bench/%.c,$(BUILD)/bench/%,$(sort $(wildcard bench/cuda/*.c))) \
                  $(patsubst bench/%.cu,$(BUILD)/bench/%,$(sort $(wildcard bench/cuda/*.cu))))

# A make that was not told how many jobs to run uses all processors. In recipes only: `$(SUBMAKE) target`.
JOBS    = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))
SUBMAKE = $(MAKE) --no-print-directory $(JOBS)

# Commands are shown in short; V=1 shows them whole, -s not at all.
SAY = $(if $(V),,@$(if $(findstring s,$(firstword -$(MAKEFLAGS))),,echo "  $(1) $@";) )

.PHONY: all demo test test-hostile test-clients test-arm arm-tests test-cuda cuda-tests cuda-archs cuda-benches test-mpi mpi-tests check format docs bench bench-cpu bench-cuda fuzz install help deps clean models program tests fuzzers benches
.DEFAULT_GOAL := all

# Each goal is a second make, so that the build sees what deps has installed.
all: deps
	+@$(SUBMAKE) program

program: $(BUILD)/hydrahead

# Missing Debian packages are installed when that is allowed; else the line to run is printed.
deps:
	@tools/install_deps.sh $(PACKAGES) $(if $(SAN)$(findstring clang,$(CC)),$(CLANG_PACKAGES)) $(if $(MPI),$(MPI_PACKAGES))

$(BUILD)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALL_CFLAGS) -c $< -o $@

# The chat page as bytes in the program.
$(BUILD)/gen/chat_page.c: src/server/chat.html
	@mkdir -p $(@D)
	@{ echo '#include "server/chat_page.h"'; echo 'const unsigned char hh_chat_page[] = {'; od -An -v -tu1 $< | sed 's/ *\([0-9][0-9]*\)/\1,/g'; \
	   echo '};'; echo 'const size_t hh_chat_page_size = sizeof hh_chat_page;'; } > $@

$(BUILD)/obj/server/chat_page.o: $(BUILD)/gen/chat_page.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/dbl/%.o: src/%.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE -c $< -o $@

define isa_rule
$(BUILD)/obj/$(1)/%.o: src/%.c
	@mkdir -p $$(@D)
	$$(call SAY,CC)$$(CC) $$(ALL_CFLAGS) -O3 -ffp-contract=fast $$(ISA_$(1)) -DHH_ISA=$(1) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))
$(BUILD)/obj/ops/cpu.o: CFLAGS += $(foreach i,$(ISAS),-DHH_HAVE_$(i)) $(if $(CUDA),-DHH_HAVE_CUDA $(if $(MPI),-DHH_HAVE_NCCL))

$(foreach k,obj dbl,$(BUILD)/$(k)/tensor/comm.o $(BUILD)/$(k)/tensor/comm_mpi.o): CFLAGS += $(if $(MPI),-DHH_HAVE_MPI $(MPI_CFLAGS))

$(BUILD)/obj/%.o: src/%.cu
	@mkdir -p $(@D)
	$(call SAY,NVCC)$(NVCC) $(NVCC_FLAGS) -c $< -o $@

$(BUILD)/libhydrahead.a: $(LIB_OBJ) $(CU_OBJ)
	@rm -f $@
	$(call SAY,AR)$(AR) rcs $@ $^

# The interface of include/hydrahead.h alone is visible; its number is HH_API_VERSION.
SONAME := libhydrahead.so.1
$(BUILD)/libhydrahead.so: $(filter-out $(BUILD)/obj/server/%,$(LIB_OBJ)) $(CU_OBJ)
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--exclude-libs,ALL $^ $(filter-out -lmicrohttpd,$(LDLIBS)) -o $@

$(BUILD)/libhydrahead_double.a: $(DBL_OBJ)
	@rm -f $@
	$(call SAY,AR)$(AR) rcs $@ $^

$(BUILD)/hydrahead: $(CLI_OBJ) $(BUILD)/libhydrahead.a
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -o $@

# gcc 12 for ARM dies of a test's loop when it makes vectors of it.
TEST_FLAGS = -Itests -Wno-missing-prototypes $(if $(filter aarch64,$(ARCH)),-fno-tree-vectorize)

$(BUILD)/obj/tests/support/%.o: tests/support/%.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALL_CFLAGS) $(TEST_FLAGS) -c $< -o $@

$(BUILD)/dbl/tests/support/%.o: tests/support/%.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE $(TEST_FLAGS) -c $< -o $@

$(BUILD)/tests/%: tests/%.c $(SUPPORT) $(BUILD)/libhydrahead.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(TEST_FLAGS) $(LDFLAGS) $< $(SUPPORT) $(BUILD)/libhydrahead.a -lcmocka $(LDLIBS) -o $@

$(DOUBLE_SRC:tests/%.c=$(BUILD)/tests/%): $(BUILD)/tests/%: tests/%.c $(DBL_SUPPORT) $(BUILD)/libhydrahead_double.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE $(TEST_FLAGS) $(LDFLAGS) $< $(DBL_SUPPORT) $(BUILD)/libhydrahead_double.a -lcmocka $(LDLIBS) -o $@

# These two try what is installed.
$(BUILD)/tests/api/test_install $(BUILD)/tests/cli/test_program: | $(BUILD)/libhydrahead.so $(BUILD)/hydrahead

tests: program $(TEST_BIN)

test: deps
	+@$(SUBMAKE) tests
	@HYDRAHEAD=$(BUILD)/hydrahead tools/run_tests.sh $(BUILD)/tests $(TEST_BIN)

# On a machine with a GPU: every op, model and gradient on the card against the CPU.
test-cuda:
	+@$(SUBMAKE) cuda-tests CUDA=1
	@HYDRAHEAD=build-cuda/hydrahead tools/run_tests.sh build-cuda/tests $(patsubst tests/%.c,build-cuda/tests/%,$(sort $(wildcard tests/cuda/test_*.c)))

cuda-tests: program $(CUDA_TEST_BIN)

# The program for every GPU that it knows, from Ampere to Blackwell; one build for one card takes a fifth of the time.
cuda-archs:
	+@$(SUBMAKE) program CUDA=1 CUDA_ARCHS="80 86 89 90a 100 120" BUILD=build-cuda-archs

# Training by 1, 2 and 4 processes on this machine; a part of `make test MPI=1`.
test-mpi:
	@$(MAKE) --no-print-directory deps MPI=1
	+@$(SUBMAKE) mpi-tests MPI=1
	@HYDRAHEAD=build-mpi/hydrahead tools/run_tests.sh build-mpi/tests $(patsubst tests/%.c,build-mpi/tests/%,$(sort $(wildcard tests/comm/test_*.c)))

mpi-tests: program $(filter $(BUILD)/tests/comm/%,$(TEST_BIN))

# A thousand hostile requests against the server, beside streams that must not notice; `make test` sends fifty.
test-hostile: deps
	+@$(SUBMAKE) $(BUILD)/hydrahead $(BUILD)/tests/server/test_hostile
	@HYDRAHEAD=$(BUILD)/hydrahead HYDRAHEAD_HOSTILE=1000 TEST_SECONDS=3600 tools/run_tests.sh $(BUILD)/tests $(BUILD)/tests/server/test_hostile

# On another processor than ARM: cross-built, under emulation. Programs that start others or take minutes there are left
# out. The ops run twice, on a processor with byte products and on one without.
ARM_TESTS = $(patsubst tests/%.c,build-arm/tests/%,$(sort $(wildcard $(foreach r,$(1),tests/$(r)/test_*.c))))
test-arm:
	@tools/install_deps.sh $(ARM_PACKAGES) pkg-config
	@tools/make_arm_root.sh $(ARM_ROOT) $(filter lib%-dev zlib1g-dev,$(PACKAGES))
	+@$(SUBMAKE) arm-tests ARM=1
	@HH_TEST_QUICK=1 TEST_SECONDS=1800 EMULATOR="qemu-aarch64 -cpu max -L $(ARM_ROOT)" tools/run_tests.sh build-arm/tests $(call ARM_TESTS,base tensor ops format text model)
	@HH_TEST_QUICK=1 TEST_SECONDS=1800 EMULATOR="qemu-aarch64 -cpu cortex-a53 -L $(ARM_ROOT)" tools/run_tests.sh build-arm/tests $(call ARM_TESTS,ops)

arm-tests: program $(filter $(call ARM_TESTS,base tensor ops format text model),$(TEST_BIN))

# Real clients against the server: needs make models, Python with the packages openai, langchain-openai, lm_eval and playwright, and chromium.
test-clients: all
	@tools/test_clients.py $(BUILD)/hydrahead $(firstword $(wildcard models/smollm2/*.gguf))
	@tools/test_lm_eval.py $(BUILD)/hydrahead
	@tools/test_page.py $(BUILD)/hydrahead $(firstword $(wildcard models/smollm2/*.gguf))

demo: deps
	+@$(SUBMAKE) program
	@$(BUILD)/hydrahead demo

# Floors, names, headers alone, warnings as errors on both compilers, formatting, documents against the option tables.
check:
	@tools/install_deps.sh $(PACKAGES) $(CHECK_PACKAGES)
	+@$(SUBMAKE) program
	@HYDRAHEAD=$(BUILD)/hydrahead tools/check.sh

format:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

docs: all
	@HYDRAHEAD=$(BUILD)/hydrahead tools/make_verbs.sh > docs/VERBS.md

# Each parser's fuzz target for FUZZ_SECONDS; what it finds is kept in build-fuzz/crashes.
fuzz:
	@tools/install_deps.sh $(PACKAGES) $(CLANG_PACKAGES)
	+@$(SUBMAKE) fuzzers CC=clang BUILD=build-fuzz SAN_CFLAGS="-fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer"
	@tools/run_fuzz.sh build-fuzz $(FUZZ)

fuzzers: $(FUZZ_BIN)

$(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/libhydrahead.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(TEST_FLAGS) -fsanitize=fuzzer,address $(LDFLAGS) $< $(BUILD)/libhydrahead.a $(LDLIBS) -o $@

bench: deps
	+@$(SUBMAKE) program benches
	@for b in $(BENCH_BIN); do $$b || exit 1; done

# Whole models beside llama.cpp, as a table of ratios. Needs make models and Python with llama-cpp-python; writes copies of the model
# in other types beside it. BENCH_CPU="--contexts 8128 --hybrid 7:1=DIR" and other words of bench/cpu_table.py.
BENCH_MODEL ?= $(firstword $(wildcard models/smollm2/*.Q4_1.gguf))
bench-cpu: deps
	+@$(SUBMAKE) program
	@bench/peers/llama_cpu.py --make $(BENCH_MODEL) >/dev/null 2>&1
	@bench/cpu_table.py --hydrahead $(BUILD)/hydrahead --peer f16=$(BENCH_MODEL:.gguf=.f16.gguf) --dense bf16=$(BENCH_MODEL:.gguf=.bf16.gguf) \
	    --dense q8_0=$(BENCH_MODEL:.gguf=.q8_0.gguf) $(BENCH_CPU)

benches: $(BENCH_BIN)

$(BUILD)/bench/%: bench/%.c $(BUILD)/libhydrahead.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(if $(CUDA),-I$(CUDA_HOME)/include) -Wno-missing-prototypes $(LDFLAGS) $< $(BUILD)/libhydrahead.a $(LDLIBS) -o $@

# On a machine with a GPU: each kernel beside its floor and its peer, then whole models.
cuda-benches: $(CUDA_BENCH_BIN)

bench-cuda: deps
	+@$(SUBMAKE) program cuda-benches CUDA=1
	@bench/run_cuda.sh

$(BUILD)/bench/cuda/%: bench/cuda/%.cu $(BUILD)/libhydrahead.a
	@mkdir -p $(@D)
	$(call SAY,NVCC)$(NVCC) $(NVCC_FLAGS) -Ibench -c $< -o $@.o
	$(call SAY,LD)$(CC) $(ALL_CFLAGS) $(LDFLAGS) $@.o $(BUILD)/libhydrahead.a $(LDLIBS) -o $@

# Models that are too large for the repository; tests that need one say so and skip when it is absent.
models:
	@tools/get_models.sh

install: all
	+@$(SUBMAKE) $(BUILD)/libhydrahead.so
	@HYDRAHEAD=$(BUILD)/hydrahead LIBS="$(LDLIBS)" tools/install.sh "$(DESTDIR)" "$(PREFIX)"

help:
	@echo "make              the program, build/hydrahead"
	@echo "make demo         the whole method on a small model, live; ends with the path of a report"
	@echo "make test         every test; SAN=address|undefined|thread and HOSTILE=1 in builds of their own"
	@echo "make test-clients openai, langchain, lm_eval, curl and a browser against the server; needs make models and Python"
	@echo "make test-hostile a thousand hostile requests against the server; SAN= as for make test"
	@echo "make test-cuda    the CUDA backend against the CPU; needs nvcc and a GPU"
	@echo "make cuda-archs   build-cuda-archs/hydrahead, for GPUs from Ampere to Blackwell at once"
	@echo "make test-mpi     training by several processes on this machine; MPI=1 builds the program for it"
	@echo "make test-arm     the kernels and models for 64-bit ARM, cross-built and under emulation"
	@echo "make check        include floors, headers alone, warnings of gcc and clang, formatting, documents"
	@echo "make fuzz         every parser for FUZZ_SECONDS (60) each; FUZZ=fuzz_gguf chooses one"
	@echo "make bench        speed of the hot operations, each beside its floor"
	@echo "make bench-cpu    whole models beside llama.cpp, as ratios; needs make models and Python"
	@echo "make bench-cuda   kernels and whole models on the GPU beside floors and PyTorch; make test-cuda bench-cuda does all there is"
	@echo "make models       downloads SmolLM2-135M-Instruct (98 MB) to models/smollm2"
	@echo "make format       clang-format over all sources"
	@echo "make docs         docs/VERBS.md from the option tables"
	@echo "make install      program, library, header, man pages, completion; PREFIX=$(PREFIX), DESTDIR="
	@echo "make clean        removes every build"

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
