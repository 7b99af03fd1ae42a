#!/bin/sh
# tools/deps with an apt-get of this test's own, and what make says before and while it compiles. Closes with
# "N passed, N failed".
set -u
cd "$(dirname "$0")/../.."
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
passed=0 failed=0
check() { # NAME COMMAND...: the command succeeds
    name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        echo "[       OK ] $name"
    else
        failed=$((failed + 1))
        echo "[  FAILED  ] $name"
        sed 's/^/    /' "$t/log" "$t/calls" 2>/dev/null
    fi
}
says() { grep -qF -e "$1" "$t/log"; }
lacks() { ! says "$1"; }
called() { [ "$(grep -cF -e "$1" "$t/calls")" = "$2" ]; }

# A machine without any package. apt-get update finds its lock held $t/held times; sudo and sleep do nothing.
mkdir "$t/bin"
printf '#!/bin/sh\nexit 1\n' >"$t/bin/dpkg-query"
printf '#!/bin/sh\nexec "$@"\n' >"$t/bin/sudo"
printf '#!/bin/sh\necho "sleep $*" >>"%s/calls"\n' "$t" >"$t/bin/sleep"
cat >"$t/bin/apt-get" <<END
#!/bin/sh
echo "apt-get \$*" >>"$t/calls"
[ "\$1" = update ] || exit 0
n=\$(cat "$t/held")
[ "\$n" = 0 ] && exit 0
echo \$((n - 1)) >"$t/held"
cat "$t/why" >&2
exit 100
END
chmod +x "$t/bin"/*
deps() { # HELD WHY TIER
    echo "$1" >"$t/held"
    echo "$2" >"$t/why"
    : >"$t/calls"
    PATH="$t/bin:$PATH" sh tools/deps "$3" >"$t/log" 2>&1
    rc=$?
}
lock='E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)'

deps 0 "" build
check "a free lock: it installs" [ "$rc" = 0 ]
check "curl is among what serving installs" called " curl" 1
check "it waits for dpkg's lock" called "-o DPkg::Lock::Timeout=300 install" 1
check "and sleeps never" called sleep 0
deps 3 "$lock" build
check "a held lock: it waits, then installs" [ "$rc" = 0 ]
check "one update more for each time" called "apt-get update" 4
check "it says that it waits" says "waiting for up to 300 s"
deps 1000 "$lock" build
check "a lock that is never free: it gives up" [ "$rc" = 1 ]
check "after five minutes" called "sleep 5" 60
check "and installs nothing" called install 0
deps 1 "E: Failed to fetch" build
check "another fault ends it at once" [ "$rc" = 1 ]
check "with apt's own words" says "Failed to fetch"
check "and without waiting" called sleep 0

mkdir "$t/bare"
for p in sh cat grep id mktemp rm dpkg-query; do ln -s "$(PATH="$t/bin:$PATH" command -v $p)" "$t/bare/$p"; done
printf '#!/bin/sh\necho 1000\n' >"$t/user" && chmod +x "$t/user" && rm "$t/bare/id" && ln -s "$t/user" "$t/bare/id"
PATH="$t/bare" sh tools/deps build >"$t/log" 2>&1
check "without root and sudo: an error" [ $? = 1 ]
check "that names the command" says "apt-get update && apt-get install -y gcc make"
check "in its own words" lacks "not found"

make CUDA=0 CC=/nonexistent/cc B="$t/none" "$t/none/roseinfer" >"$t/log" 2>&1
check "make without a compiler fails" [ $? != 0 ]
check "it says so" says "Missing: the compiler /nonexistent/cc"
check "and how to install what compiling needs" says "apt-get install gcc make"
check "before it compiles anything" lacks "src/base/buf.c"
printf '#!/bin/sh\ngrep -q utf8proc.h && exit 1\nexit 0\n' >"$t/cc" && chmod +x "$t/cc"
make CUDA=0 CC="$t/cc" B="$t/none" "$t/none/libraries" >"$t/log" 2>&1
check "a missing library: an error" [ $? != 0 ]
check "it names the header" grep -q 'Missing: utf8proc.h$' "$t/log"

make -n CUDA=0 CC=/nonexistent/cc B="$t/none" "$t/none/roseinfer" >"$t/log" 2>&1
check "without a compiler make shows no false error" lacks "No such file"
check "and says which file it would compile" says "CC src/base/buf.c"
n=$(grep -c 'echo.*"\[[0-9]*/[0-9]*\] CC src/' "$t/log")
check "each with its number" says "[$n/$n] CC src/"
printf '#!/bin/sh\necho "no index" >&2\nexit 1\n' >"$t/bin/python3" && chmod +x "$t/bin/python3"
mkdir -p "$t/tree/tools" "$t/tree/.ci"
cp tools/nvcc "$t/tree/tools/" && cp .ci/run "$t/tree/.ci/"
for f in deps fetch; do echo 'exit 0' >"$t/tree/tools/$f"; done
printf 'checked test-routers test-clients test-packages test-page test-ray test-kubernetes:\n\t@:\ntest:\n\t@touch ran\n' >"$t/tree/Makefile"
(cd "$t/tree" && NVCC=/nonexistent/nvcc PATH="$t/bin:$PATH" bash .ci/run) >"$t/log" 2>&1
check ".ci/run without nvcc fails" [ $? = 1 ]
check "it names the cause" says "make test: not run, because tools/nvcc has no nvcc"
check "and does not run the tier without nvcc" [ ! -e "$t/tree/ran" ]
make -n CUDA=0 serve >"$t/log" 2>&1
check "make serve says that it builds" says "building roseinfer"

ROSE_TEST_PATIENCE=0.2 python3 tools/run_tests "sleep 1" true >"$t/log" 2>&1
check "run_tests says what still runs" grep -q '^still running: sleep 1, [01] s$' "$t/log"
check "and counts its lines" says "[2/2] ok"
ROSE_TEST_PATIENCE=60 python3 tools/run_tests "sleep 0.1" true >"$t/log" 2>&1
check "not while other lines come" lacks "still running"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
