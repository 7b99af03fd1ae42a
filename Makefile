# roseinfer - one non-recursive Makefile. `make help` lists the targets.
# VARIANT selects compiler, flags and the build directory: release (build/), checked, asan, tsan (build/<variant>/).

VARIANT ?= release
# V=1 shows the commands.
Q := $(if $(V),,@)
# Without make's own words, such as "is up to date".
SILENT := --no-print-directory $(if $(V),,-s)

ifeq ($(VARIANT),checked)
CC      := clang-14
else ifeq ($(origin CC),default)
CC      := gcc
endif
comma   := ,
B       := $(if $(filter release,$(VARIANT)),build,build/$(VARIANT))
VERSION := 0.1.0
COMMIT  := $(shell git describe --always --abbrev=12 --dirty --exclude='*' 2>/dev/null || echo unknown)

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wstrict-prototypes \
        -Wmissing-prototypes -Wvla -Wundef -Wcast-align -Wwrite-strings -Wformat=2 -Wswitch-enum -Werror
# -ffp-contract=off: the numerics contract writes every fused multiply-add out; the compiler adds none.
BASE := -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -ffp-contract=off -fno-strict-aliasing -fPIC \
        -fvisibility=hidden -pthread -g
OPT_release := -O2 -DNDEBUG
OPT_asan    := -O1 -DROSE_DEBUG=1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# One build that finds what needs another compiler, assertions, sanitizers or the allocation guard. gcc says in a macro that
# it checks addresses, clang 14 does not. clang's check of pointer arithmetic also refuses NULL + 0, which gcc's allows.
# -g1 has the lines that a report names, and compiles faster than -g.
OPT_checked := $(OPT_asan) -g1 -fno-sanitize=pointer-overflow -DROSE_ALLOC_GUARD=1 -D__SANITIZE_ADDRESS__=1
OPT_tsan    := -O1 -DROSE_DEBUG=1 -fsanitize=thread -fno-omit-frame-pointer
SAN         := $(filter -fsanitize%,$(OPT_$(VARIANT)))
CFLAGS      := $(BASE) $(WARN) $(OPT_$(VARIANT)) $(EXTRA_CFLAGS)
# The checked build counts allocations per thread, so that a step that allocates aborts (base/allocguard.h).
WRAP_FNS    := malloc calloc realloc free aligned_alloc posix_memalign cudaMalloc cudaFree cudaHostAlloc cudaFreeHost \
               cudaGraphInstantiate cudaGraphExecDestroy cudaEventCreateWithFlags
WRAP        := $(if $(filter checked,$(VARIANT)),$(addprefix -Wl$(comma)--wrap=,$(WRAP_FNS)))

# Debian's static archives; pcre2 and http_parser have no dependencies of their own.
STATIC_LIBS := -l:libevent_core.a -l:libevent_pthreads.a -l:libhttp_parser.a \
               -l:libpcre2-8.a -l:libutf8proc.a -l:libyaml.a
LDFLAGS     := -pthread $(SAN) $(WRAP)
# What edits a line of `roseinfer chat`: libedit and the libraries that it needs, all under BSD or MIT licences.
EDIT_LIBS   := -l:libedit.a -l:libbsd.a -l:libmd.a -l:libtinfo.a
LIBS         = $(STATIC_LIBS) $(CUDA_LIBS) -lm

# The CUDA backend, where there is nvcc: CUDA=auto|0|1. Its kernels are built once for all variants; the CUDA
# runtime is linked statically and loads the driver when it is first called, so the program runs without either.
# Sanitizer builds leave it out unless told otherwise.
CUDA       ?= auto
NVCC       ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_RT    := $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a))
CUDA_FOUND := $(if $(SAN),0,$(if $(and $(wildcard $(NVCC)),$(CUDA_RT)),1,0))
WITH_CUDA  := $(if $(filter auto,$(CUDA)),$(CUDA_FOUND),$(CUDA))
# The machine code in the program, and PTX for chips newer than all of it.
CUDA_ARCHS ?= 80 86 89 90a
CUDA_PTX   ?= 90
# Without this nvcc compresses so little that the kernels of all architectures take 28 MB.
NVSMALL    := $(if $(filter 1,$(WITH_CUDA)),$(if $(shell $(NVCC) --help | grep -o compress-mode),--compress-mode=size))
NVFLAGS    := -std=c++17 -O3 -fmad=false $(NVSMALL) $(if $(LINEINFO),-lineinfo) $(if $(RACECHECK),-DROSE_RACECHECK) -Isrc -Werror all-warnings -diag-suppress 177 \
              -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a$(comma)code=sm_$a) \
              $(foreach a,$(CUDA_PTX),-gencode arch=compute_$a$(comma)code=compute_$a)
CUDA_SRC   := $(if $(filter 1,$(WITH_CUDA)),$(sort $(wildcard src/backend/cuda/*.cu)))
CUDA_C     := $(if $(filter 1,$(WITH_CUDA)),$(sort $(wildcard src/backend/cuda/*.c)))
CUDA_OBJ   := $(CUDA_SRC:src/%.cu=build/cuda/%.o) $(CUDA_C:src/%.c=$B/obj/%.o)
CUDA_LIBS  := $(if $(filter 1,$(WITH_CUDA)),$(CUDA_RT) -ldl -lrt)

# oneDNN, for `bench kernels` alone: its header at build time, its library when it runs.
DNNL       ?= $(if $(wildcard /usr/include/oneapi/dnnl/dnnl.h),1,0)

# One object per source. The suffix of a kernel file names its instruction set; nothing else gets -m flags.
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
FLAGS_avx2   := -mavx2 -mfma -mf16c
FLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
FLAGS_amx    := $(FLAGS_avx512) -mamx-tile -mamx-bf16
FLAGS_avx512bf16 := $(FLAGS_avx512) -mavx512bf16
FLAGS_avxvnni := $(FLAGS_avx2) -mavxvnni
FLAGS_avx512vnni := $(FLAGS_avx512) -mavx512vnni
endif
# UBSAN's checks of pointers make these files 3 to 5 times as slow to compile. ASAN sees what such pointers read.
SAN_ISA      := $(if $(SAN),-fno-sanitize=null$(comma)object-size$(comma)pointer-overflow)
isa_of        = $(lastword $(subst _, ,$(basename $(notdir $1))))
isa_flags     = $(if $(FLAGS_$(isa_of)),$(FLAGS_$(isa_of)) $(SAN_ISA))

# clang 14 takes four minutes of CPU time for this file if it optimises code with ASAN.
$B/obj/backend/cpu/matmul_avx512bf16.o: CFLAGS += $(if $(filter checked,$(VARIANT)),-O0)

ROOMS   := base http batch tokenizer grammar template model chat backend backend/cpu kv sched spec engine api hub lib
SRC     := $(sort $(foreach r,$(ROOMS),$(wildcard src/$r/*.c)))
CLI_SRC := $(sort $(wildcard src/cli/*.c))
OBJ     := $(SRC:src/%.c=$B/obj/%.o) $(CUDA_OBJ)
CLI_OBJ := $(CLI_SRC:src/%.c=$B/obj/%.o)
# roseinfer-bench, and the load tests, which use its code and the server's.
BENCH_OBJ := $(patsubst %.c,$B/o/%.o,$(sort $(wildcard bench/*.c)))
LOAD_OBJ  := $(patsubst %.c,$B/o/%.o,$(sort $(filter-out tests/load/test_%.c,$(wildcard tests/load/*.c))))
LOAD      := $B/tests/load/load
TESTS   := $(sort $(filter-out $(if $(filter 1,$(WITH_CUDA)),,tests/backend/test_cuda_%.c tests/bench/test_cuda_%.c),$(wildcard tests/*/test_*.c)))
TESTBIN := $(TESTS:tests/%.c=$B/tests/%)
# Kernels as C++ on an emulated GPU: what tests them where there is none. Their objects serve all variants. ROSE_TEST_LONG=1
# runs all cases; `.ci/run` does. They come first, because one of them takes longest.
EMULATED := $B/tests/backend/emulated
E        := build/emulated
EMULATED_TESTS := $(if $(filter 1,$(WITH_CUDA)),$(addprefix $(EMULATED)/test_emulated_,wide forward attend gemm rows load mega))
TESTBIN  := $(EMULATED_TESTS) $(TESTBIN)
TOOLBIN := $(patsubst tests/tools/%.c,$B/tests/tools/%,$(wildcard tests/tools/*.c))
FUZZ    := $(patsubst fuzz/fuzz_%.c,%,$(wildcard fuzz/fuzz_*.c))
# Each fuzz target as a program that replays the files it is given.
REPLAY  := $(FUZZ:%=$B/fuzz/replay_%)

# A line for each file: "[12/178] CC src/x.c" where files are missing, else without the count. The count is of what the goals build.
GOALS   := $(or $(MAKECMDGOALS),all)
COUNTED := $(OBJ) $(CLI_OBJ) $(if $(filter all tests,$(GOALS)),$(BENCH_OBJ)) \
           $(if $(filter tests,$(GOALS)),$(LOAD_OBJ) $(filter-out $(EMULATED_TESTS),$(TESTBIN)) $(TOOLBIN) $(REPLAY))
MISSING := $(filter-out $(wildcard $(COUNTED)),$(COUNTED))
say      = $(if $(V),,@$(if $(filter $@,$(MISSING)),$(eval COUNT += x))echo \
           "$(if $(filter $@,$(MISSING)),[$(words $(COUNT))/$(words $(MISSING))] )$1")

# The C library: everything but the server and the program.
LIB_ROOMS := base tokenizer grammar template model chat backend backend/cpu kv sched spec engine lib
LIB_OBJ   := $(sort $(foreach r,$(LIB_ROOMS),$(patsubst src/%.c,$B/obj/%.o,$(wildcard src/$r/*.c)))) $(CUDA_OBJ)
LIB_DEPS  := $(CUDA_LIBS) -lpcre2-8 -lutf8proc -lyaml -lm -pthread

PREFIX  ?= /usr/local
DESTDIR ?=
MODEL   ?= models/rose-tiny
HOST    ?= 127.0.0.1
PORT    ?= 8888

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

.PHONY: test-routers test-ray test-clients test-page test-packages uninstall wheel deb test-neon test-amx all help tests list-tests list-faults list-replay clean serve chat program test test-long check units format format-check checked cuda-compile emulated asan tsan bench \
        fuzz install example deps-build deps-test test-gpu sanitize-gpu bench-gpu

# What the program writes from its tables of options: the man page and the completion scripts.
PROGRAMS := roseinfer roseinfer-bench
DOCS     := $(PROGRAMS:%=$B/%.1) $(PROGRAMS:%=$B/completion/%) $(PROGRAMS:%=$B/completion/_%)

all: $B/roseinfer $B/roseinfer-bench $B/libroseinfer.a $B/libroseinfer.so $B/roseinfer.pc $(DOCS)

help:
	@echo "make               build $B/roseinfer, $B/roseinfer-bench and the library"
	@echo "make serve         install what is missing, build, serve $(MODEL) on $(HOST):$(PORT); MODEL=smollm2 fetches SmolLM2 135M"
	@echo "make chat          install what is missing, build, fetch SmolLM2 135M (98 MB), talk with it; MODEL=FOLDER talks with another"
	@echo "make test          every test that needs no GPU: about 10 minutes on 2 cores (installs what it needs)"
	@echo "make test-long     minutes to hours: 20,000 rude clients, lm-eval, a soak of SOAK (default 2m)"
	@echo "make check         under a minute: format, include law, unit tests"
	@echo "make checked       by clang, warnings as errors: unit tests and fuzz corpus with sanitizers, assertions, allocation guard"
	@echo "make asan, tsan    the unit tests and the server tests under sanitizers"
	@echo "make bench         throughput of a random GPT-2 124M on this machine"
	@echo "make cuda-compile  the program with its CUDA kernels for one architecture, and the emulated GPU; fetches nvcc where there is none"
	@echo "make test-neon     the CPU kernels for AArch64, cross-compiled, under qemu"
	@echo "make test-amx      the AMX kernels, their tile instructions emulated, on a CPU with AVX-512"
	@echo "make test-routers  vllm-router and smg in front of three servers (installs both)"
	@echo "make test-ray      Ray Data and Ray Serve over our library and server (installs Ray)"
	@echo "make test-page     the page of the server in headless Chromium (installs it); SHOTS=FOLDER keeps pictures"
	@echo "make test-clients  openai, anthropic, agents, LangChain and others against a server (installs them); CLIENTS=all: benchmarks too"
	@echo "make test-packages packages, container, systemd: each tried where it is run (bare roots need root and network)"
	@echo "make test-gpu      tests of the CUDA backend, on a machine with a GPU"
	@echo "make sanitize-gpu  a part of them under compute-sanitizer: memory, races, initialisation, barriers"
	@echo "make bench-gpu     step times and throughput of a random GPT-2 124M on GPU 0, to outputs/"
	@echo "make fuzz          each fuzz target for FUZZ_SECONDS (default 60; needs clang)"
	@echo "make install       programs, library, header, man page, completion to PREFIX (default /usr/local)"
	@echo "make wheel         a Python wheel of program, library and module to $B/wheel"
	@echo "make uninstall     removes what make install installed, with the same PREFIX and DESTDIR"
	@echo "make deb           a Debian package in build/: programs, library, man pages, systemd service"
	@echo "make format        clang-format in place"

build/cuda/%.o: src/%.cu
	@mkdir -p $(@D)
	$(call say,NVCC $<)
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -MF $@.d -c $< -o $@

$B/obj/backend/cuda/%.o $B/o/bench/%.o $B/tests/backend/test_cuda_% $B/tests/bench/test_cuda_%: CFLAGS += -isystem $(CUDA_HOME)/include \
    $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/extras/CUPTI/include))
$B/obj/backend/cuda/gemm_tuned.o: src/backend/cuda/tuned.txt
$B/obj/api/page.o: CFLAGS += -include $B/page_hashes.h
$B/obj/api/page.o: $B/page_hashes.h
$B/page_hashes.h: src/api/page.html $(wildcard src/api/page*.css src/api/page*.js) tools/page
	@mkdir -p $(@D)
	$(Q)sh tools/page $< $B
$B/o/bench/onednn.o: CFLAGS += -DROSE_DNNL=$(DNNL)
$B/obj/backend/backend.o $B/o/bench/%.o $B/tests/bench/%: CFLAGS += -DROSE_CUDA=$(WITH_CUDA)
$B/obj/backend/backend.o $(BENCH_OBJ): $B/with-cuda-$(WITH_CUDA)
$B/with-cuda-%:
	@mkdir -p $(@D) && rm -f $B/with-cuda-* && touch $@

# What is missing is named at once, with the command that installs it, instead of one header at a time. Not asked again later.
$B/libraries:
	@mkdir -p $(@D)
	@sh tools/deps has $(CC)
	@touch $@

$B/obj/%.o: src/%.c | $B/libraries
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) $(call isa_flags,$<) -DROSE_VERSION='"$(VERSION)"' -MMD -MP -c $< -o $@

# Rebuilt when the commit changes, and only then.
$(shell mkdir -p $B && [ "$$(cat $B/commit 2>/dev/null)" = '$(COMMIT)' ] || echo '$(COMMIT)' > $B/commit)
$B/obj/base/version.o: $B/commit
$B/obj/base/version.o: CFLAGS += -DROSE_COMMIT='"$(COMMIT)"' -DROSE_DATE='"$(shell git log -1 --format=%cs 2>/dev/null)"'

# Everything but main(): what the tests, the program and the fuzzers link.
$B/librose_all.a: $(OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $^

# libbsd comes after libevent, which takes arc4random from it: in glibc this function is as new as version 2.36.
$B/roseinfer: $(CLI_OBJ) $B/librose_all.a
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(CLI_OBJ) $B/librose_all.a $(STATIC_LIBS) $(EDIT_LIBS) $(LIBS)

# What is outside src/.
$B/o/%.o: %.c | $B/libraries
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) -I. -Itests -MMD -MP -c $< -o $@
# Everything of bench/ but main(), for its tests.
$B/librose_bench.a: $(filter-out %/main.o,$(BENCH_OBJ))
	@rm -f $@
	$(Q)ar rcs $@ $^
$B/librose_load.a: $(filter-out %/main.o,$(LOAD_OBJ))
	@rm -f $@
	$(Q)ar rcs $@ $^
# Linked to the C library, so that nothing of the server can get into it.
$B/roseinfer-bench: $B/o/bench/main.o $B/librose_bench.a $B/libroseinfer.a
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$(LOAD): $B/o/tests/load/main.o $B/librose_load.a $B/librose_bench.a $B/librose_all.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$(PROGRAMS:%=$B/%.1): $B/%.1: $B/%
	$(Q)$< --man > $@
$(PROGRAMS:%=$B/completion/_%): $B/completion/_%: $B/%
	@mkdir -p $(@D)
	$(Q)$< completion zsh > $@
$(PROGRAMS:%=$B/completion/%): $B/completion/%: $B/%
	@mkdir -p $(@D)
	$(Q)$< completion bash > $@

$B/libroseinfer.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)ar rcs $@ $^

$B/libroseinfer.so: $(LIB_OBJ)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libroseinfer.so.1 -Wl,-z,defs -o $@ $^ $(LIB_DEPS)

# The library of the wheel needs glibc only. Debian's static archives are not built for shared libraries. They can be linked
# into one all the same, if it uses its own symbols (-Bsymbolic).
WHEEL_ARCHIVES := libpcre2-8.a libutf8proc.a libyaml.a
$B/wheel/libroseinfer.so: $(LIB_OBJ)
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libroseinfer.so.1 -Wl,-z,defs -Wl,-Bsymbolic \
	    $(WHEEL_ARCHIVES:%=-Wl,--exclude-libs,%) -o $@ $^ $(CUDA_LIBS) $(WHEEL_ARCHIVES:%=-l:%) -lm

$B/roseinfer.pc: tools/roseinfer.pc.in Makefile $B/with-cuda-$(WITH_CUDA)
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@LIBS@|$(LIB_DEPS)|' $< > $@

$B/tests/%: tests/%.c $B/librose_all.a
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) -Wno-missing-prototypes -I. -Itests -MMD -MP -MF $@.d $< -o $@ $(LDFLAGS) $(BENCH_LIBS) \
	    $B/librose_all.a $(LIBS) -lcmocka
# The tests of code that is not in the server.
BENCH_TESTS := $(filter $B/tests/bench/% $B/tests/load/%,$(TESTBIN))
LOAD_TESTS  := $(filter $B/tests/load/%,$(TESTBIN))
$(BENCH_TESTS): $B/librose_bench.a
$(BENCH_TESTS): BENCH_LIBS = $B/librose_bench.a
$(LOAD_TESTS): $B/librose_load.a
$(LOAD_TESTS): BENCH_LIBS = $B/librose_load.a $B/librose_bench.a

EMULATED_FLAGS := -std=c++20 -O2 -ffp-contract=off -fno-strict-aliasing -pthread -Wall -Wextra \
    -Wno-unknown-pragmas -Wno-sign-compare -Wno-missing-field-initializers -Wno-deprecated-enum-enum-conversion -Wno-maybe-uninitialized -Wno-psabi \
    -Itests/backend/emulated -Isrc -isystem $(CUDA_HOME)/include
$E/%.o: tests/backend/emulated/%.cc
	@mkdir -p $(@D)
	$(call say,CXX $<)
	$(Q)$(CXX) $(EMULATED_FLAGS) -MMD -MP -c $< -o $@
$E/%.o: src/backend/cuda/%.cu
	@mkdir -p $(@D)
	$(call say,CXX $<)
	$(Q)$(CXX) $(EMULATED_FLAGS) -MMD -MP -x c++ -c $< -o $@
# One kernel family each; `gemm` has all GEMM kernels of the table.
EMULATED_gemm   := fp32 norm $(patsubst src/backend/cuda/%.cu,%,$(wildcard src/backend/cuda/gemm_*.cu))
EMULATED_wide   := $(filter gemm_wide%,$(EMULATED_gemm))
EMULATED_rows   := norm $(filter gemm_rows%,$(EMULATED_gemm))
EMULATED_attend := $(patsubst src/backend/cuda/%.cu,%,$(wildcard src/backend/cuda/attend_*.cu))
EMULATED_mega   := megakernel
EMULATED_C_attend := attend
EMULATED_C_gemm   := gemm_table gemm_choose
.SECONDEXPANSION:
$(addprefix $(EMULATED)/test_emulated_,wide attend gemm rows mega): $(EMULATED)/test_emulated_%: $E/test_emulated_%.o $E/machine.o \
    $$(addprefix $E/,$$(addsuffix .o,$$(EMULATED_$$*))) $$(addprefix $B/obj/backend/cuda/,$$(addsuffix .o,$$(EMULATED_C_$$*)))
	@mkdir -p $(@D)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ -lcmocka

$(EMULATED)/%.o: tests/backend/emulated/%.c
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) -Wno-missing-prototypes -I. -Itests -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@
$(EMULATED)/test_emulated_load: $(EMULATED)/test_emulated_load.o $E/machine.o $E/pack.o \
    $(addprefix $B/obj/backend/cuda/,load.o weights.o plan.o scratch.o switches.o attend.o) $B/librose_all.a
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ -l:libpcre2-8.a -l:libutf8proc.a -l:libyaml.a -lm -lcmocka
# The whole backend: its host files, its kernels but for sampler.cu, and a runtime in host memory.
$(EMULATED)/test_emulated_forward: $(EMULATED)/test_emulated_forward.o $E/runtime.o $E/machine.o \
    $(patsubst src/backend/cuda/%.cu,$E/%.o,$(filter-out %/sampler.cu,$(CUDA_SRC))) $B/librose_all.a
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(STATIC_LIBS) -lm -lcmocka

# A server over a CUDA runtime that needs no GPU, and a driver that stands before the real one, both of which fail when told
# to (tests/backend/test_cuda_serve.py).
FAULTS := $(if $(filter 1,$(WITH_CUDA)),$(addprefix $B/tests/backend/,roseinfer_fake_cuda faults/libcuda.so.1))

tests: $(TESTBIN) $(TOOLBIN) $(LOAD) $(REPLAY) $B/roseinfer-bench $(FAULTS)

$B/fuzz/replay_%: fuzz/fuzz_%.c fuzz/replay_main.c $B/librose_bench.a $B/librose_all.a
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) -I. -Wno-missing-prototypes -MMD -MP -MF $@.d $< fuzz/replay_main.c -o $@ $(LDFLAGS) \
	    $B/librose_bench.a $B/librose_all.a $(LIBS)

# For tools/test.
list-tests:
	@echo $(TESTBIN)
list-faults:
	@echo $(FAULTS)
list-replay:
	@echo $(FUZZ)

$B/tests/backend/fake_cuda.o: tests/backend/fake_cuda.c tests/backend/cuda_faults.h
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Wno-missing-prototypes -Itests -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@
# In all variants this server has the allocation guard, which finds what a step over the CUDA backend allocates.
GUARDED := $(addprefix $B/guarded/,base/allocguard.o backend/cuda/guard.o engine/engine.o)
$B/guarded/%.o: src/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -DROSE_ALLOC_GUARD=1 -isystem $(CUDA_HOME)/include -MMD -MP -c $< -o $@
$B/tests/backend/roseinfer_fake_cuda: $(CLI_OBJ) $B/tests/backend/fake_cuda.o $(GUARDED) $B/librose_all.a
	$(Q)$(CC) $(LDFLAGS) $(addprefix -Wl$(comma)--wrap=,$(WRAP_FNS)) -o $@ $^ $(EDIT_LIBS) $(STATIC_LIBS) -lm
$B/tests/backend/faults/libcuda.so.1: tests/backend/cuda_faults.c tests/backend/cuda_faults.h
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -Itests -shared -o $@ $< -ldl

# ---- what a person types ----

deps-build:
	@sh tools/deps build
deps-test:
	@sh tools/deps test

# MODEL=smollm2 is the model that tools/smollm2 fetches; `make chat` talks to it if no MODEL is given.
CHAT_MODEL := $(if $(filter file,$(origin MODEL)),smollm2,$(MODEL))
fetched     = $(if $(filter smollm2,$1),"$$(sh tools/smollm2)",$1)
# What both pass for it: its authors' sampling, which the GGUF file does not say. With int8 activations so small a model
# answers worse. SERVE_ARGS and CHAT_ARGS add options.
smollm2_args := --dtype float32 --override-generation-config '{"temperature": 0.2, "top_p": 0.9, "max_new_tokens": 512}'
model_args    = $(if $(filter smollm2,$1),$(smollm2_args))
# Ctrl-C is for the program, which the shell survives, so that make has no error to report. 130: the program ended by it.
foreground    = trap : INT; $1; rc=$$?; [ $$rc -ne 130 ] || rc=0; exit $$rc

program:
	@test -x build/roseinfer || echo "building roseinfer: about 2 minutes on 2 cores$(if $(filter 1,$(WITH_CUDA)),$(comma) and several more for the CUDA kernels)"
	@$(MAKE) $(SILENT) -j$$(nproc) build/roseinfer

serve:
	@sh tools/deps $(if $(filter smollm2,$(MODEL)),model,build)
	@$(MAKE) $(SILENT) program
	@$(call foreground,model=$(call fetched,$(MODEL)) && build/roseinfer serve "$$model" --host $(HOST) --port $(PORT) $(call model_args,$(MODEL)) $(SERVE_ARGS))

chat:
	@sh tools/deps $(if $(filter smollm2,$(CHAT_MODEL)),model,build)
	@$(MAKE) $(SILENT) program
	@$(call foreground,model=$(call fetched,$(CHAT_MODEL)) && build/roseinfer chat "$$model" $(call model_args,$(CHAT_MODEL)) $(CHAT_ARGS))

test: deps-test
	@sh tools/test

check: deps-test
	@$(MAKE) --no-print-directory -j2 format-check all tests
	@python3 tools/check_includes
	@python3 tools/check_docs
	@$(MAKE) --no-print-directory units

# The unit tests of this variant, and the fuzz corpus.
units: $(TESTBIN) $(TOOLBIN) $(REPLAY)
	@python3 tools/run_tests --jobs 2 $(TESTBIN) $(FUZZ:%="sh tools/replay $B %")

# The CUDA code without a GPU: it compiles for one architecture (ARCH), and on the emulated GPU and with a CUDA runtime in host
# memory its results are right.
ARCH ?= 90a
cuda-compile:
	@sh tools/deps cuda
	@nvcc=$$(sh tools/nvcc) && $(MAKE) --no-print-directory -j2 CUDA=1 NVCC="$$nvcc" CUDA_ARCHS=$(ARCH) CUDA_PTX= emulated
emulated: $B/roseinfer $(EMULATED_TESTS) $(addprefix $B/tests/backend/test_cuda_,tuned without) $(FAULTS)
	@$B/roseinfer --version
	@ROSE_TEST_LONG=1 python3 tools/run_tests --jobs 2 $(filter $B/tests/backend/%,$(filter-out $(FAULTS),$^)) \
	    "python3 tests/backend/test_cuda_serve.py $(firstword $(FAULTS)) models/rose-tiny"
# Without CUDA: `.ci/run` builds it in the release variant.
checked:
	@sh tools/deps checked
	@$(MAKE) --no-print-directory -j2 VARIANT=checked CUDA=0 build/checked/roseinfer tests
	@$(MAKE) --no-print-directory VARIANT=checked CUDA=0 units

format:
	clang-format-14 -i $(FORMATTED)
format-check:
	@clang-format-14 --dry-run -Werror $(FORMATTED)
FORMATTED = $(sort $(wildcard bench/*.[ch] src/*/*.[ch] src/*/*/*.[ch] src/*/*/*.cu src/*/*/*.cuh include/*.h tests/*.h tests/*/*.[ch] tests/*/emulated/*.h tests/*/emulated/*.cc tests/*/emulated/*/*/*.cuh fuzz/*.c examples/*.c examples/*.cc))

# SOAK=30m for the whole soak; VARIANT=asan or tsan for the rude clients under a sanitizer.
test-long: deps-test
	@SOAK="$(SOAK)" VARIANT=$(VARIANT) sh tools/test long

test-routers: deps-test
	@sh tools/test_routers

test-ray: deps-test
	@sh tools/test_ray

# CLIENTS=all, or names of groups of tests/api/clients.txt.
test-clients: deps-test
	@CLIENTS="$(CLIENTS)" sh tools/test_clients

asan tsan:
	@sh tools/deps test
	@$(MAKE) --no-print-directory -j2 VARIANT=$@ build/$@/roseinfer tests
	@VARIANT=$@ sh tools/test sanitize

test-page:
	@SHOTS="$(SHOTS)" sh tools/test_page

test-packages: deps-test
	@sh tools/test_packages

bench: deps-build
	@$(MAKE) --no-print-directory -j2 build/roseinfer build/roseinfer-bench build/tests/load/load
	@sh tools/bench

# The NEON kernels under emulation: Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user.
# (The test itself at -O1: gcc 12 for AArch64 fails on it at -O3.)
NEON_SRC := $(wildcard src/backend/cpu/*_ref.c) $(addprefix src/,backend/cpu/kernels.c backend/cpu/kernels_neon.c \
            backend/rotary.c backend/cpu/pack.c backend/cpu/quant_pack.c backend/cpu/quant_neon.c model/convert.c \
            model/format.c base/gguf_get.c base/cpuinfo.c base/status.c base/log.c base/file.c base/buf.c)
NEON_TESTS := test_kernels test_quant
NEON_CC  := aarch64-linux-gnu-gcc -std=c11 -D_GNU_SOURCE -ffp-contract=off -Wall -Wextra -Werror -Isrc -Itests -Itests/backend/neon -pthread
test-neon:
	@mkdir -p build/neon
	$(Q)for f in $(NEON_SRC); do $(NEON_CC) -O3 -c $$f -o build/neon/$$(basename $$f .c).o || exit 1; done
	$(Q)for t in $(NEON_TESTS); do \
	    $(NEON_CC) -O1 -static -o build/neon/$$t tests/backend/$$t.c build/neon/*.o -lm && qemu-aarch64 build/neon/$$t || exit 1; done

# The AMX kernels on a CPU without AMX: its instructions in plain C, in kernels that need AVX-512 all the same.
test-amx:
	@grep -qw avx512bw /proc/cpuinfo || { echo "test-amx: this CPU has no AVX-512, which the kernels around the tiles need; run it on one that has" >&2; exit 1; }
	@$(MAKE) --no-print-directory -j2 CUDA=0 B=build/amx-emulation EXTRA_CFLAGS="-include tests/backend/amx_emulation.h" \
	    build/amx-emulation/tests/backend/test_kernels
	build/amx-emulation/tests/backend/test_kernels --isa amx

GPU_TESTS := $(filter $B/tests/backend/test_cuda_% $B/tests/bench/test_cuda_%,$(TESTBIN))
test-gpu: $(GPU_TESTS) $(addprefix $B/tests/engine/test_engine_,cpu guide pool) $B/roseinfer $(FAULTS)
	@python3 tools/run_tests $(GPU_TESTS) $(foreach t,cpu guide pool,"env ROSE_TEST_DEVICE=cuda $B/tests/engine/test_engine_$t") \
	    "python3 tests/backend/test_cuda_serve.py $B/roseinfer models/rose-tiny $B/tests/backend/faults/libcuda.so.1"
sanitize-gpu: $(GPU_TESTS)
	@sh tools/sanitize_gpu $(GPU_TESTS)
bench-gpu: build/roseinfer build/roseinfer-bench build/tests/tools/gpu_steps
	@sh tools/bench_gpu

FUZZ_SECONDS ?= 60
fuzz:
	@FUZZ_SECONDS=$(FUZZ_SECONDS) sh tools/fuzz $(FUZZ)

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include
	install -m 755 $B/roseinfer $B/roseinfer-bench $(DESTDIR)$(PREFIX)/bin/
	install -m 644 include/roseinfer.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 $B/libroseinfer.a $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $B/libroseinfer.so $(DESTDIR)$(PREFIX)/lib/libroseinfer.so.1
	ln -sf libroseinfer.so.1 $(DESTDIR)$(PREFIX)/lib/libroseinfer.so
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	install -m 644 $(PROGRAMS:%=$B/%.1) $(DESTDIR)$(PREFIX)/share/man/man1/
	install -m 644 $(PROGRAMS:%=$B/completion/%) $(DESTDIR)$(PREFIX)/share/bash-completion/completions/
	install -m 644 $(PROGRAMS:%=$B/completion/_%) $(DESTDIR)$(PREFIX)/share/zsh/site-functions/
	install -d $(DESTDIR)$(PREFIX)/share/roseinfer/drivers
	install -m 644 tools/drivers/*.py $(DESTDIR)$(PREFIX)/share/roseinfer/drivers/
	sed -e 's|^prefix=.*|prefix=$(PREFIX)|' $B/roseinfer.pc > $(DESTDIR)$(PREFIX)/lib/pkgconfig/roseinfer.pc

# The Python wheel, into $B/wheel: program, library and module. `pip install` takes the file that is printed.
wheel: $B/roseinfer $B/wheel/libroseinfer.so
	@rm -f $B/wheel/*.whl
	@python3 tools/wheel.py $(VERSION) $B/roseinfer $B/wheel/libroseinfer.so $B/wheel

# Whatever the rule above installs is removed, because the list of files is a second installation, into $B.
uninstall:
	@rm -rf $B/uninstall
	@$(MAKE) --no-print-directory install DESTDIR=$(abspath $B/uninstall) > /dev/null
	@sh tools/uninstall $B/uninstall "$(DESTDIR)" "$(PREFIX)"

DEB = build/roseinfer_$(VERSION)_$(shell dpkg --print-architecture 2>/dev/null || echo unknown).deb
deb: all
	@rm -rf $B/deb build/roseinfer_*.deb
	@$(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(abspath $B/deb) > /dev/null
	@sh packaging/build_deb $B/deb $(VERSION) $(DEB)
	@rm -rf $B/deb

clean:
	rm -rf build

-include $(wildcard $E/*.d $(EMULATED)/*.d) $(CUDA_SRC:src/%.cu=build/cuda/%.o.d) $(OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(BENCH_OBJ:.o=.d) $(LOAD_OBJ:.o=.d) $(TESTBIN:=.d) $(TOOLBIN:=.d) $(REPLAY:=.d) $B/tests/backend/fake_cuda.d $(GUARDED:.o=.d)
