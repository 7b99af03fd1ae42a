# What `tools/bare_root ROOT sh -c "$(cat docs/results/bare-root.sh)"` runs in a minimal Debian 12 root: both commands of the
# README, then its two examples against the server that still runs. Output: bare-root.log (apt's lines left out).
apt-get update >/dev/null 2>&1 && apt-get install -y make >/dev/null 2>&1
(make serve >/tmp/serve.log 2>&1 &)
for i in $(seq 1 300); do
    grep -q listening /tmp/serve.log && break
    sleep 1
done
echo "make serve: listening after $i s"
tail -2 /tmp/serve.log
make test >/tmp/test.log 2>&1
tested=$?
tail -90 /tmp/test.log
curl -sN http://127.0.0.1:8888/v1/completions -H 'Content-Type: application/json' \
    -d '{"model": "rose-tiny", "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0.8, "stream": true}'
.venv/bin/python - <<'P'
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8888/v1", api_key="none")
for chunk in client.completions.create(model="rose-tiny", prompt="Once upon a time", max_tokens=40,
                                       temperature=0.8, seed=1, stream=True):
    print(chunk.choices[0].text, end="", flush=True)
P
echo
for p in /proc/[0-9]*; do # end the server
    [ "$(readlink "$p/exe" 2>/dev/null)" = /roseinfer/build/roseinfer ] && kill "${p#/proc/}"
done
sleep 1
tail -2 /tmp/serve.log
exit $tested
