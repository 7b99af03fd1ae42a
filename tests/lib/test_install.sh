#!/bin/sh
# The library as a user gets it: make install into an empty folder, compile the example against the
# pkg-config file, shared and static, and compare its text with the program's.
set -eu
cd "$(dirname "$0")/../.."
model=models/rose-tiny
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
passed=0
ok() { passed=$((passed + 1)); echo "ok: $1"; }
die() { echo "FAILED: $1"; echo "$passed passed, 1 failed"; exit 1; }

make --no-print-directory -j2 install PREFIX="$tmp/usr" >/dev/null || die "make install"
for f in bin/roseinfer bin/roseinfer-bench include/roseinfer.h lib/libroseinfer.a lib/libroseinfer.so lib/pkgconfig/roseinfer.pc \
    share/man/man1/roseinfer.1 share/man/man1/roseinfer-bench.1 share/bash-completion/completions/roseinfer share/zsh/site-functions/_roseinfer \
    share/roseinfer/drivers/driver.py share/roseinfer/drivers/vllm.py; do
    [ -s "$tmp/usr/$f" ] || die "make install did not install $f"
done
ok "make install"

export PKG_CONFIG_PATH="$tmp/usr/lib/pkgconfig"
want=$("$tmp/usr/bin/roseinfer" generate $model -p "Once upon a time" --max-tokens 32 --temperature 0 --no-echo)
[ -n "$want" ] || die "the installed program writes nothing"

# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -std=c11 examples/generate.c -o "$tmp/shared" $(pkg-config --cflags --libs roseinfer)
got=$(LD_LIBRARY_PATH="$tmp/usr/lib" "$tmp/shared" $model "Once upon a time")
[ "$got" = "$want" ] || die "shared: '$got' is not '$want'"
ldd "$tmp/shared" | grep -q libroseinfer.so.1 || die "the shared example does not use the shared library"
ok "example, shared library"

# shellcheck disable=SC2046
gcc -Wall -Wextra -Werror -std=c11 examples/generate.c -o "$tmp/static" -I"$tmp/usr/include" \
    "$tmp/usr/lib/libroseinfer.a" $(pkg-config --static --libs roseinfer | sed 's/-lroseinfer//')
got=$("$tmp/static" $model "Once upon a time")
[ "$got" = "$want" ] || die "static: '$got' is not '$want'"
ok "example, static library"

# shellcheck disable=SC2046
g++ -Wall -Wextra -Werror -std=c++17 examples/many.cc -o "$tmp/many" $(pkg-config --cflags --libs roseinfer)
got=$(LD_LIBRARY_PATH="$tmp/usr/lib" "$tmp/many" $model "Once upon a time" "The king" "Once upon a time")
[ "$(printf '%s\n' "$got" | sed -n 1p)" = "$want" ] || die "C++: '$got' does not begin with '$want'"
[ "$(printf '%s\n' "$got" | sed -n 3p)" = "$want" ] || die "C++: '$got' does not end with '$want'"
ok "example in C++: many requests in one poll loop"

python=$(ROSEINFER_LIBRARY="$tmp/usr/lib/libroseinfer.so.1" python3 examples/stream.py $model "Once upon a time" "The king" "Once upon a time")
[ "$python" = "$got" ] || die "Python: '$python' is not '$got'"
ok "example in Python: asyncio on the wake-up descriptor"

nm -D --defined-only "$tmp/usr/lib/libroseinfer.so" | awk '{print $3}' | grep -v '^rose_lib_' | grep . &&
    die "the shared library exports symbols other than rose_lib_*"
ok "only rose_lib_* is exported"
echo "$passed passed, 0 failed"
