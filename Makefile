# roseinfer - one non-recursive Makefile. `make help` lists the targets.
# VARIANT selects flags and the build directory: release (build/), debug, asan, tsan (build/<variant>/).

VARIANT ?= release
ifeq ($(origin CC),default)
CC      := gcc
endif
comma   := ,
B       := $(if $(filter release,$(VARIANT)),build,build/$(VARIANT))
VERSION := 0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wstrict-prototypes \
        -Wmissing-prototypes -Wvla -Wundef -Wcast-align -Wwrite-strings -Wformat=2 -Wswitch-enum -Werror
# -ffp-contract=off: the numerics contract writes every fused multiply-add out; the compiler adds none.
BASE := -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -ffp-contract=off -fno-strict-aliasing -fPIC \
        -fvisibility=hidden -pthread -g
OPT_release := -O2 -DNDEBUG
OPT_debug   := -O1 -DROSE_DEBUG=1
OPT_asan    := -O1 -DROSE_DEBUG=1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan    := -O1 -DROSE_DEBUG=1 -fsanitize=thread -fno-omit-frame-pointer
SAN         := $(filter -fsanitize%,$(OPT_$(VARIANT)))
CFLAGS      := $(BASE) $(WARN) $(OPT_$(VARIANT)) $(EXTRA_CFLAGS)
# The debug build counts allocations per thread, so that a step that allocates aborts (base/allocguard.h).
WRAP_FNS    := malloc calloc realloc free aligned_alloc posix_memalign
WRAP        := $(if $(filter debug,$(VARIANT)),$(addprefix -Wl$(comma)--wrap=,$(WRAP_FNS)))

# Debian's static archives; jansson, pcre2 and http_parser have no dependencies of their own.
STATIC_LIBS := -l:libevent_core.a -l:libevent_pthreads.a -l:libhttp_parser.a -l:libjansson.a \
               -l:libpcre2-8.a -l:libutf8proc.a
LDFLAGS     := -pthread $(SAN) $(WRAP)
LIBS        := $(STATIC_LIBS) -lm

# One object per source. The suffix of a kernel file names its instruction set; nothing else gets -m flags.
FLAGS_avx2   := -mavx2 -mfma -mf16c
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
FLAGS_amx    := $(FLAGS_avx512) -mamx-tile -mamx-bf16
isa_flags     = $(FLAGS_$(lastword $(subst _, ,$(basename $(notdir $1)))))

ROOMS   := base http tokenizer model backend backend/cpu kv sched engine api lib bench
SRC     := $(sort $(foreach r,$(ROOMS),$(wildcard src/$r/*.c)))
CLI_SRC := $(sort $(wildcard src/cli/*.c))
OBJ     := $(SRC:src/%.c=$B/obj/%.o)
CLI_OBJ := $(CLI_SRC:src/%.c=$B/obj/%.o)
TESTS   := $(sort $(wildcard tests/*/test_*.c))
TESTBIN := $(TESTS:tests/%.c=$B/tests/%)
# Programs that test scripts drive: tests/tools/NAME.c -> $B/tests/tools/NAME, no cmocka needed.
TOOLS   := $(sort $(wildcard tests/tools/*.c))
TOOLBIN := $(TOOLS:tests/%.c=$B/tests/%)

.DEFAULT_GOAL := all
.PHONY: all tests clean

all: $B/roseinfer

$B/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(call isa_flags,$<) -DROSE_VERSION='"$(VERSION)"' -MMD -MP -c $< -o $@

# Everything but main(): what the tests, the program and the fuzzers link.
$B/librose_all.a: $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$B/roseinfer: $(CLI_OBJ) $B/librose_all.a
	$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $B/librose_all.a $(LIBS)

$B/tests/%: tests/%.c $B/librose_all.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-missing-prototypes -Itests -MMD -MP -MF $@.d $< -o $@ $(LDFLAGS) $B/librose_all.a $(LIBS) -lcmocka

tests: $(TESTBIN) $(TOOLBIN)

clean:
	rm -rf build

-include $(OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TESTBIN:=.d) $(TOOLBIN:=.d)
