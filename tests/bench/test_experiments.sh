#!/bin/sh
# tools/experiments with loads that say nothing: `sh test_experiments.sh BINARY MODEL`; closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
BIN=$1 MODEL=$2
export BIN
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
passed=0 failed=0

check() { # NAME COMMAND...
    what=$1
    shift
    if "$@" > "$T/said" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $what: $*"
        cat "$T/said"
    fi
}

refused() { # WORDS OPTIONS...: exit code 2, the words are said, nothing is begun
    words=$1
    shift
    tools/experiments "$MODEL" "$T/refused" "$@" > "$T/out" 2>&1
    [ $? -eq 2 ] && grep -q -- "$words" "$T/out" && [ ! -e "$T/refused" ]
}

good_json() { # FILE WORD: it is whole, holds that word, and its command line
    python3 -m json.tool "$1" /dev/null && grep -q "\"$2\"" "$1" && grep -q '"command"' "$1"
}

check "an unknown experiment" refused "unknown experiment 'magic'" --only baseline,magic
check "an unknown device" refused "expected cpu or cuda" --device tpu
check "an unknown option" refused "unknown option --fast" --fast
check "an option without its value" refused "needs a value" --only
check "it runs" tools/experiments "$MODEL" "$T/o" --quick
for f in baseline/online/online:summaries baseline/offline/offline:results overlap/ablate/ablate:overlap-schedule \
    async/ablate/ablate:async-admit sse/ablate/ablate:fast-sse sse/http-on-1/http:tok_per_io_cpu_s sse/http-off-1/http:tok_per_io_cpu_s \
    prefill/ablate/ablate:isa prefill/scalar/offline:results prefill/all/offline:scalar batch/ablate/ablate:max-num-seqs \
    batch/8/online:batch8 batch/all/online:batch32 ttft/burst/stream:queue_wait_ms ttft/burst-16/stream:queue_wait_ms \
    ttft/apart/stream:queue_wait_ms; do
    check "$f" good_json "$T/o/${f%:*}_results.json" "${f#*:}"
done
check "the command line stands beside it" grep -q -- "--prefill-max-batch-size 16" "$T/o/ttft/burst-16/command.sh"
check "what was said, too" grep -q "prefill -> first token" "$T/o/ttft/burst/log.txt"
check "nothing is left in between" test ! -e "$T/o/baseline/online/new"
if command -v gnuplot > /dev/null; then
    for f in baseline/online/figures/online_latency_compare batch/all/figures/online_latency_compare \
        prefill/all/figures/offline_throughput_compare overlap/ablate/figures/ablate ttft/burst/figures/stream_ttft_parts; do
        check "$f" test -s "$T/o/$f.png"
    done
fi
BIN=/bin/false
check "a step that fails is named" sh -c "! tools/experiments '$MODEL' '$T/f' --only ttft --quick > '$T/f.txt' 2>&1 &&
    grep -q '^failed: ttft/burst ttft/burst-16 ttft/apart' '$T/f.txt'"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
