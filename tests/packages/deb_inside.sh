#!/bin/sh
# test_deb.py runs this in a bare Debian: standard input is the package. Each line "ok NAME" is a check that passed.
set -eu
ok() {
    echo "ok $1"
}
cat > /tmp/roseinfer.deb
apt-get update -q > /dev/null 2>&1 || { echo "no network: apt-get update failed"; exit 77; }
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install -y -q --no-install-recommends "$@" > /tmp/apt.log 2>&1 || { cat /tmp/apt.log; return 1; }
}
install curl gcc libc6-dev pkg-config || { echo "no network: apt-get install failed"; exit 77; }
# What `apt install ./roseinfer.deb` would fetch. Debian must have it, so a failure is none of the network.
depends=$(dpkg-deb -f /tmp/roseinfer.deb Depends | sed 's/ *([^)]*)//g; s/,/ /g')
# shellcheck disable=SC2086
install $depends
find / -xdev -not -path '/roseinfer*' -not -path '/var/*' -not -path '/tmp/*' -not -path /etc/ld.so.cache | sort > /tmp/before
dpkg -i /tmp/roseinfer.deb && ok "dpkg -i"
cd /
roseinfer --version | grep '^roseinfer ' && ok "roseinfer --version"
[ "$(dpkg-query -W -f='${Conffiles}\n' roseinfer | grep -c ' /etc/')" = 2 ] && ok "two conffiles"

# As the unit starts it: the file of the package, with a model.
sed -i 's|^# model: .*|model: /roseinfer/models/rose-tiny|; s|^# port:.*|port: 0|' /etc/roseinfer/config.yaml
roseinfer serve --config /etc/roseinfer/config.yaml > /tmp/serve.log 2>&1 &
server=$!
i=0
until url=$(sed -n 's|.*listening on \(http://[^ ]*\).*|\1|p' /tmp/serve.log | head -1) && [ -n "$url" ] && curl -sf "$url/ready" > /dev/null; do
    i=$((i + 1))
    if [ $i -gt 600 ] || ! kill -0 $server; then
        cat /tmp/serve.log
        exit 1
    fi
    sleep 0.1
done
ok "the server is ready"
curl -sN --fail "$url/v1/completions" -H 'Content-Type: application/json' \
    -d '{"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": true}' | tee /tmp/stream
[ "$(grep -c '^data: {' /tmp/stream)" -ge 8 ] && grep -q '^data: \[DONE\]' /tmp/stream && ok "a streamed answer"
kill $server
wait $server && ok "SIGTERM ends it with 0"

# The C library by pkg-config.
cat > /tmp/v.c <<'C'
#include <roseinfer.h>
#include <stdio.h>
int main(void)
{
    puts(rose_lib_version());
    return 0;
}
C
# shellcheck disable=SC2046
gcc /tmp/v.c -o /tmp/v $(pkg-config --cflags --libs roseinfer)
[ "$(/tmp/v)" = "$(roseinfer --version | cut -d' ' -f2)" ] && ok "a program with the library"

dpkg -r roseinfer > /dev/null
[ -f /etc/roseinfer/config.yaml ] && ok "a removal keeps the changed configuration"
dpkg -P roseinfer > /dev/null
find / -xdev -not -path '/roseinfer*' -not -path '/var/*' -not -path '/tmp/*' -not -path /etc/ld.so.cache | sort > /tmp/after
diff /tmp/before /tmp/after && ok "a purge leaves nothing"
