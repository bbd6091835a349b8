# hydrahead: `make demo` and `make test` are all the set-up there is. `make help` lists the rest.
#
#   SAN=address|undefined|thread   a sanitizer build in its own folder (thread: clang and libomp)
#   HOSTILE=1                      failing allocator, NaN-filled memory
#   CC=clang                       another compiler
#
# Every source under src/ but src/cli/ goes into the library, twice: once with float activations and once in double
# precision, the oracle of the gradient tests. src/ops/simd/*.c is compiled once for each instruction set.
# tests/*/test_*.c link against the first, tests/*/double_*.c against the second.

ifeq ($(origin CC),default)
CC := gcc
endif
ARCH    := $(shell uname -m)
VARIANT := $(if $(SAN),-$(SAN))$(if $(HOSTILE),-hostile)
BUILD   ?= build$(VARIANT)

PACKAGES := libdnnl-dev libjansson-dev libpcre2-dev libutf8proc-dev zlib1g-dev libcmocka-dev pkg-config
LIBS     := jansson libpcre2-8 libutf8proc zlib

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
           -Wmissing-prototypes -Wvla $(if $(WERROR),-Werror)
OPT     ?= -O2
CFLAGS  ?= -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(OPT) -fno-math-errno -fopenmp -fPIC -fvisibility=hidden $(WARN) -Isrc -Iinclude \
             -MMD -MP $(SAN_CFLAGS) $(if $(HOSTILE),-DHH_HOSTILE) $(CFLAGS)
LDLIBS  = -ldnnl $(shell pkg-config --libs $(LIBS) 2>/dev/null) -lm

ifeq ($(SAN),address)
SAN_CFLAGS := -fsanitize=address -fno-omit-frame-pointer
else ifeq ($(SAN),undefined)
SAN_CFLAGS := -fsanitize=undefined -fno-sanitize-recover=undefined
else ifeq ($(SAN),thread)
CC := clang
SAN_CFLAGS := -fsanitize=thread -fopenmp=libomp
endif

# Instruction sets of src/ops/simd/: name and flags.
ifeq ($(ARCH),x86_64)
ISAS := avx2 avx512
else ifeq ($(ARCH),aarch64)
ISAS := neon
endif
ISA_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd -mfma -mf16c -mbmi2 -mprefer-vector-width=512

SRC     := $(sort $(shell find src -name '*.c'))
LIB_SRC := $(filter-out src/cli/% src/ops/simd/%,$(SRC))
SIMD_SRC := $(filter src/ops/simd/%,$(SRC))
CLI_SRC := $(filter src/cli/%,$(SRC))

LIB_OBJ := $(LIB_SRC:src/%.c=$(BUILD)/obj/%.o) $(foreach i,$(ISAS),$(SIMD_SRC:src/%.c=$(BUILD)/obj/$(i)/%.o))
DBL_OBJ := $(LIB_SRC:src/%.c=$(BUILD)/dbl/%.o)
CLI_OBJ := $(CLI_SRC:src/%.c=$(BUILD)/obj/%.o)

TEST_SRC   := $(sort $(wildcard tests/*/test_*.c))
DOUBLE_SRC := $(sort $(wildcard tests/*/double_*.c))
TEST_BIN   := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%) $(DOUBLE_SRC:tests/%.c=$(BUILD)/tests/%)
SUPPORT    := $(patsubst tests/%.c,$(BUILD)/obj/tests/%.o,$(wildcard tests/support/*.c))
DBL_SUPPORT := $(SUPPORT:$(BUILD)/obj/%=$(BUILD)/dbl/%)

.PHONY: all demo test check bench fuzz install help deps clean models tests
.DEFAULT_GOAL := all

all: $(BUILD)/hydrahead

# Missing Debian packages are installed when that is allowed; else the line to run is printed.
deps:
	@tools/install_deps.sh $(PACKAGES)

$(BUILD)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/dbl/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE -c $< -o $@

define isa_rule
$(BUILD)/obj/$(1)/%.o: src/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(ALL_CFLAGS) -O3 -ffp-contract=fast $$(ISA_$(1)) -DHH_ISA=$(1) -c $$< -o $$@
endef
$(foreach i,$(ISAS),$(eval $(call isa_rule,$(i))))
$(BUILD)/obj/ops/cpu.o: CFLAGS += $(foreach i,$(ISAS),-DHH_HAVE_$(i))

$(BUILD)/libhydrahead.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/libhydrahead_double.a: $(DBL_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/hydrahead: $(CLI_OBJ) $(BUILD)/libhydrahead.a
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -o $@

TEST_FLAGS = -Itests -Wno-missing-prototypes

$(BUILD)/obj/tests/support/%.o: tests/support/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(TEST_FLAGS) -c $< -o $@

$(BUILD)/dbl/tests/support/%.o: tests/support/%.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE $(TEST_FLAGS) -c $< -o $@

$(BUILD)/tests/%: tests/%.c $(SUPPORT) $(BUILD)/libhydrahead.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(TEST_FLAGS) $(LDFLAGS) $< $(SUPPORT) $(BUILD)/libhydrahead.a -lcmocka $(LDLIBS) -o $@

$(DOUBLE_SRC:tests/%.c=$(BUILD)/tests/%): $(BUILD)/tests/%: tests/%.c $(DBL_SUPPORT) $(BUILD)/libhydrahead_double.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DHH_REAL_DOUBLE $(TEST_FLAGS) $(LDFLAGS) $< $(DBL_SUPPORT) $(BUILD)/libhydrahead_double.a -lcmocka $(LDLIBS) -o $@

tests: all $(TEST_BIN)

# A second make, so that the build sees what deps has installed.
test: deps
	@$(MAKE) --no-print-directory tests
	@HYDRAHEAD=$(BUILD)/hydrahead tools/run_tests.sh $(BUILD)/tests $(TEST_BIN)

demo: deps
	@$(MAKE) --no-print-directory all
	@$(BUILD)/hydrahead demo

clean:
	rm -rf build build-*

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
