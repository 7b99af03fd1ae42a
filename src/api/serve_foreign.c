/* api/serve_foreign.c - what options of other servers mean here, see serve_opts.h. A row whose
 * option exists here under the same name stands only for the values that our own option lacks. The
 * order within a name counts: the first row that fits the value is taken. */
#include "api/serve_opts.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A row of an option with a value. */
#define ROW(names_, whose_, takes_, act_, values_, to_, why_)                                      \
    {                                                                                              \
        .names = (names_), .whose = (whose_), .takes = ROSE_FOREIGN_##takes_,                      \
        .act = ROSE_FOREIGN_##act_, .values = (values_), .to = (to_), .why = (why_)                \
    }
#define ALIAS(n, w, values, to) ROW(n, w, VALUE, ALIAS, values, to, NULL)
#define SAME(n, w, values, why) ROW(n, w, VALUE, SAME, values, NULL, why)
#define IDLE(n, w, values, why) ROW(n, w, VALUE, IDLE, values, NULL, why)
#define NOT(n, w, values, why)  ROW(n, w, VALUE, REFUSED, values, NULL, why)
/* Further values of the name before. */
#define OR_ALIAS(values, to) ROW(NULL, NULL, VALUE, ALIAS, values, to, NULL)
#define OR_SAME(values, why) ROW(NULL, NULL, VALUE, SAME, values, NULL, why)
#define OR_IDLE(values, why) ROW(NULL, NULL, VALUE, IDLE, values, NULL, why)
#define OR_NOT(values, why)  ROW(NULL, NULL, VALUE, REFUSED, values, NULL, why)
/* A switch. */
#define S_ALIAS(n, w, to) ROW(n, w, SWITCH, ALIAS, NULL, to, NULL)
#define S_SAME(n, w, why) ROW(n, w, SWITCH, SAME, NULL, NULL, why)
#define S_IDLE(n, w, why) ROW(n, w, SWITCH, IDLE, NULL, NULL, why)
#define S_NOT(n, w, why)  ROW(n, w, SWITCH, REFUSED, NULL, NULL, why)
/* A switch that may have a value. */
#define M_ALIAS(n, w, values, to) ROW(n, w, MAYBE, ALIAS, values, to, NULL)
#define M_SAME(n, w, values, why) ROW(n, w, MAYBE, SAME, values, NULL, why)
#define M_NOT(n, w, values, why)  ROW(n, w, MAYBE, REFUSED, values, NULL, why)

#define ON       "true|on|1|yes"
#define OFF      "false|off|0|no"
#define HERE     "not here: "
#define YET      "not yet: "
#define LORA     YET "adapters (LoRA) cannot be served; merge the adapter into the weights"
#define SPEC     YET "there are no draft models; --speculative-config guesses without one"
#define TEXT     HERE "models take text only; leave the option out"
#define ONE      HERE "a server uses one GPU; docs/SCALING.md says how to run several servers"
#define ROPE     HERE "positions are those of the model's config.json or GGUF file; change them there"
#define LOADS    "the weight files are read once, at the start"
#define KEPT     "the prefix cache keeps what memory allows, without copies on the host"
#define MOE      HERE "models with a mixture of experts are not served"
#define CLI      HERE "this is a field of requests; the server has no default for it"
#define SAMPLING "`--override-generation-config` with "
#define PARTS    HERE "a model runs as a whole on the GPU or on the CPU (-ngl 0)"

/* names of llama-server's --spec-type */
#define SPEC_NGRAM "ngram-simple|ngram-map-k|ngram-map-k4v|ngram-mod|ngram-cache"
#define SPEC_DRAFT "draft|draft-simple|draft-eagle3|draft-mtp|draft-dflash|draft-dspark"

static const rose_foreign rows[] = {
    /* ---- the model ---- */
    ALIAS("-m --model", "vls", "*", "MODEL=$"),
    ALIAS("--model-path", "s", "*", "MODEL=$"),
    ROW("-hf -hfr --hf-repo", "l", VALUE, ALIAS, "*", "@repo=$",
        "MODEL, with the type Q4_K_M if none is named; MODEL without a type is the repository's "
        "own files"),
    NOT("-hff --hf-file", "l", "*", "write the type after the name: -hf ORG/NAME:Q4_K_M"),
    NOT("-mu --model-url", "l", "*", "fetch the file with curl, and give -m FILE"),
    NOT("-dr --docker-repo", "l", "*",
        HERE "-hf ORG/NAME:QUANT takes models of the Hugging Face hub"),
    ALIAS("-a --alias", "l", "*", "served-model-name=$"),
    IDLE("--tags", "l", "*", "no reply shows tags"),
    ROW("--tokenizer --tokenizer-path", "vs", VALUE, ALIAS, "*", "@tokenizer=$",
        "accepted if it names MODEL, whose tokenizer is taken; else refused"),
    SAME("--revision", "vs", "main", "main is what is fetched"),
    OR_NOT("*",
           "run `roseinfer pull ORG/NAME --revision REV`, and serve the folder that it prints"),
    NOT("--code-revision --tokenizer-revision", "v", "*",
        HERE "model and tokenizer have one revision, and no code is fetched; see --revision"),
    M_NOT("--hf-token", "v", "*",
          "set the environment variable HF_TOKEN, which no other user can read"),
    NOT("-hft", "l", "*", "set the environment variable HF_TOKEN, which no other user can read"),
    NOT("--download-dir", "vs", "*", "set the environment variable HF_HUB_CACHE to the folder"),
    S_ALIAS("--offline", "l", "no-pull"),
    M_SAME("--trust-remote-code", "vs", ON, "models need no code of their own, and none is run"),
    S_SAME("--no-trust-remote-code", "v", "no code of a model is run"),
    SAME("--tokenizer-mode", "vs", "auto|hf|slow", "there is one tokenizer for each format"),
    OR_NOT("*", HERE "the tokenizer is read from tokenizer.json, tokenizer.model or the GGUF file"),
    SAME("--config-format", "v", "auto|hf", "config.json is read"),
    OR_NOT("*", HERE "a model needs config.json, or is a GGUF file"),
    SAME("--model-impl", "vs", "auto|vllm|sglang", "there is one implementation"),
    OR_NOT("*", HERE "models run in the engine's own code only"),
    SAME("--load-format", "vs", "safetensors|gguf|hf|fastsafetensors|runai_streamer|prefetch",
         "auto reads safetensors and GGUF"),
    OR_NOT("pt|npcache|bitsandbytes|sharded_state|tensorizer|mistral|layered|remote",
           "safetensors or GGUF files are read; convert the model"),
    NOT("--hf-config-path --hf-overrides --json-model-override-args", "vs", "*",
        "change config.json in the model's folder"),
    NOT("--override-kv", "l", "*", "change the metadata of the GGUF file"),
    SAME("--model-loader-extra-config --safetensors-load-strategy --ignore-patterns "
         "--pt-load-map-location "
         "--weight-loader-disable-mmap --load-mode -lm",
         "vls", "auto|none|mmap|dio|{}|lazy|eager|prefetch", LOADS),
    OR_ALIAS("mlock|mmap+mlock", "mlock"),
    OR_NOT("*", HERE LOADS),
    S_SAME("--use-tqdm-on-load --no-use-tqdm-on-load --disable-tqdm", "v",
           "the log shows the progress of loading"),
    S_SAME("--mmap --no-mmap --repack --check-tensors", "l", LOADS),
    S_IDLE("--no-repack -nr", "l", "weights are always packed for the CPU's instructions"),
    S_NOT("--skip-tokenizer-init", "vs",
          HERE "prompts of ids and return_token_ids need no change of the server"),
    SAME("--task", "v", "generate|auto", "generation and embeddings are served by the same model"),
    OR_ALIAS("embedding", "task=embed"),
    SAME("--runner", "v", "auto|generate|pooling",
         "generation and embeddings are served by the same model"),
    SAME("--convert", "v", "auto|none|embed", "/v1/embeddings works with every model"),
    OR_NOT("*", "--task rerank serves a reranker"),
    S_SAME("--embedding --embeddings --is-embedding --rerank --reranking", "ls",
           "/v1/embeddings and /v1/rerank are always there, and so are completions"),
    ALIAS("--pooling", "l", "mean|last", "pooling-type=$"),
    OR_ALIAS("rank", "task=rerank"),
    OR_NOT("*", HERE "an embedding is the last state or the mean (--pooling-type)"),
    NOT("--pooler-config --override-pooler-config", "v", "*", "write --pooling-type last or mean"),
    SAME("--embd-normalize", "l", "2", "embeddings have length 1"),
    OR_NOT("*", HERE "a request's field `normalize` turns normalisation off"),

    IDLE("--max-parallel-loading-workers --lazy-mode -lzm", "vl", "*", LOADS),
    S_SAME("--direct-io -dio --no-direct-io -ndio", "l", LOADS),
    S_NOT("--delete-ckpt-after-loading", "s", HERE LOADS),
    NOT("--custom-weight-loader --weight-transfer-config", "vs", "*", HERE LOADS),

    /* ---- numbers ---- */
    ALIAS("--dtype", "vs", "half", "dtype=float16"),
    OR_ALIAS("float", "dtype=float32"),
    SAME("--quantization -q", "vs", "gguf", "a GGUF file says so itself"),
    OR_NOT("fp8*|mxfp*|nvfp*|modelopt*",
           YET "8-bit floats; --quantization int8 (CPU), or a GGUF file"),
    OR_NOT("awq*|gptq*|bitsandbytes|marlin|compressed-tensors|torchao|aqlm|quark|w8a8*|exl*|hqq",
           HERE
           "give a GGUF file of the model, or its plain weights with --quantization int8 (CPU)"),
    OR_ALIAS("none|int8", "quantization=$"),
    SAME("--kv-cache-dtype", "vs", "auto", "the KV cache has the type of --dtype"),
    OR_NOT("fp8*|int8*|nvfp4|fp4*|turboquant*",
           YET "a quantized KV cache; the KV cache has the type of --dtype"),
    OR_NOT("*", "the KV cache has the type of --dtype: set that"),
    SAME("-ctk --cache-type-k -ctv --cache-type-v", "l", "f16|bf16",
         "the KV cache has the type of --dtype, of at least 16 bits"),
    OR_NOT("f32", "write --dtype float32: the KV cache has its type"),
    OR_NOT("*", YET "a quantized KV cache; the KV cache has the type of --dtype"),
    S_NOT("--calculate-kv-scales", "v", YET "a quantized KV cache"),
    NOT("--quantization-param-path --quantization-config", "vs", "*",
        YET "a quantized KV cache and 8-bit floats"),
    NOT("--override-attention-dtype", "v", "*", "attention has the type of --dtype"),
    S_NOT("--enable-fp32-lm-head", "s",
          "the numbers are those of --dtype; --dtype float32 has the most digits"),
    S_SAME("--enable-deterministic-inference", "s",
           "a seed gives the same reply, whatever runs next to it"),
    S_SAME("--enable-nan-detection", "s", "a request whose logits are not finite fails"),
    NOT("--mamba-*", "v", "*", HERE "state-space models are not served"),
    S_NOT("--kv-sharing-fast-prefill", "v", HERE "each layer has a KV cache of its own"),
    NOT("--rope-scaling", "vl", "*", ROPE),
    NOT("--rope-theta --rope-scale --rope-freq-base --rope-freq-scale --yarn-*", "vl", "*", ROPE),
    S_NOT("--disable-sliding-window", "v", ROPE),
    M_SAME("-fa --flash-attn", "l", ON "|auto", "attention never stores its matrix of scores"),
    OR_NOT(OFF, "there is no other attention on the CPU; on a GPU --prefill-backend naive"),
    NOT("--attention-backend --attention-config --prefill-attention-backend "
        "--decode-attention-backend",
        "vs", "*", "--prefill-backend chooses the attention kernel of prefill on a GPU"),
    IDLE("--sampling-backend --grammar-backend --guided-decoding-backend "
         "--structured-outputs-config",
         "vs", "*", "there is one sampler, and one engine of structured output"),
    S_IDLE("-bs --backend-sampling", "l", "the GPU samples anyway"),

    /* ---- context, memory, batches ---- */
    ALIAS("--max-model-len", "v", "auto|-1", "max-model-len=0"),
    ALIAS("--context-length", "s", "*", "max-model-len=$"),
    ROW("-c --ctx-size", "l", VALUE, ALIAS, "*", "@ctx=$",
        "counts the tokens of all slots: with -np P, --max-model-len is N/P, else N; 0 is the "
        "model's length"),
    SAME("-np --parallel", "l", "-1", "the server decides"),
    ROW(NULL, NULL, VALUE, ALIAS, "*", "@slots=$", "`--max-num-seqs VALUE`, and -c is shared out"),
    ROW("-kvu --kv-unified", "l", SWITCH, ALIAS, NULL, "@shared",
        "each slot may use the whole of -c, which is --max-model-len"),
    S_SAME("-no-kvu --no-kv-unified", "l", "-c is shared out over the slots of -np"),
    NOT("--kv-unified-per-slot", "l", "*", "write --max-model-len"),
    ALIAS("--max-running-requests", "s", "*", "max-num-seqs=$"),
    ALIAS("--max-queued-requests", "s", "*", "max-num-queued-reqs=$"),
    ALIAS("-b --batch-size", "l", "*", "max-num-batched-tokens=$"),
    ALIAS("-ub --ubatch-size", "l", "*", "prefill-max-tokens=$"),
    ALIAS("--max-prefill-tokens", "s", "*", "prefill-max-tokens=$"),
    ALIAS("--chunked-prefill-size", "s", "-1", "no-chunked-prefill"),
    OR_ALIAS("*", "prefill-chunk-size=$"),
    M_ALIAS("--enable-chunked-prefill", "v", ON, "chunked-prefill"),
    ROW(NULL, NULL, MAYBE, ALIAS, OFF, "no-chunked-prefill", NULL),
    S_ALIAS("--no-enable-chunked-prefill", "v", "no-chunked-prefill"),
    S_SAME("--enable-mixed-chunk", "s", "prompts and decoding share steps"),
    ALIAS("--long-prefill-token-threshold", "v", "*", "prefill-chunk-size=$k"),
    SAME("--max-num-partial-prefills", "v", "1", "prompts share steps by their tokens"),
    OR_NOT("*", "--prefill-max-batch-size limits the requests that prefill in one step"),
    NOT("--max-long-partial-prefills", "v", "*",
        "--prefill-chunk-size limits what a long prompt takes of a step"),
    ALIAS("--mem-fraction-static", "s", "*", "gpu-memory-utilization=$"),
    ALIAS("--kv-cache-memory-bytes", "v", "*", "kv-cache-memory=$k"),
    ALIAS("--num-gpu-blocks-override", "v", "*", "num-kv-pages=$"),
    ALIAS("--max-total-tokens", "s", "*", "num-kv-pages=$p"),
    SAME("--block-size --page-size", "vs", "16", "pages of the KV cache have 16 tokens"),
    OR_NOT("*", "pages of the KV cache have 16 tokens; leave the option out"),
    SAME("--swap-space", "v", "0", "nothing is swapped"),
    OR_IDLE("*", "a request that is preempted is computed again, with the same result"),
    SAME("--cpu-offload-gb", "vs", "0", "weights stay where they are"),
    OR_NOT("*", PARTS),
    NOT("--kv-offloading-size --kv-offloading-backend --kv-transfer-config", "v", "*",
        HERE "the KV cache stays in the memory of its server"),
    M_ALIAS("--enable-prefix-caching", "v", ON, "prefix-cache"),
    ROW(NULL, NULL, MAYBE, ALIAS, OFF, "no-prefix-cache", NULL),
    S_ALIAS("--no-enable-prefix-caching --disable-radix-cache --no-cache-prompt", "vls",
            "no-prefix-cache"),
    S_ALIAS("--cache-prompt", "l", "prefix-cache"),
    IDLE("--prefix-caching-hash-algo", "v", "*", "the prefix cache compares tokens, not hashes"),
    SAME("--cache-reuse", "l", "0", "only equal beginnings are reused"),
    OR_IDLE("*", "only equal beginnings are reused, which changes no reply"),
    IDLE("-cram --cache-ram", "l", "*", KEPT "; --prefix-cache-max-pages limits it"),
    IDLE("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -sps "
         "--slot-prompt-similarity",
         "l", "*", KEPT),
    S_IDLE("--cache-idle-slots --no-cache-idle-slots --swa-full --disable-hybrid-kv-cache-manager",
           "vl", KEPT),
    S_SAME("--no-context-shift", "l", "a reply ends where the context is full"),
    S_NOT("--context-shift", "l", HERE "a reply ends where the context is full"),
    IDLE("--keep", "l", "*", "the context is never shifted"),
    S_SAME("-cb --cont-batching", "l", "requests are batched step by step"),
    S_NOT("-nocb --no-cont-batching", "l", "write --max-num-seqs 1: one request at a time"),
    ALIAS("--scheduling-policy --schedule-policy", "vs", "fcfs", "priority-age-ms=0"),
    OR_SAME("priority", "requests have priorities (--priority-age-ms)"),
    OR_NOT("*", "--admission and --priority-age-ms say in which order requests start"),
    S_ALIAS("--async-scheduling", "v", "overlap-schedule"),
    S_ALIAS("--no-async-scheduling --disable-overlap-schedule", "vs", "no-overlap-schedule"),
    S_SAME("--enable-priority-scheduling", "s", "requests have priorities (--priority-age-ms)"),
    S_SAME("--schedule-low-priority-values-first", "s", "a lower number goes first"),
    ALIAS("--prefill-max-requests", "s", "*", "prefill-max-batch-size=$"),
    S_IDLE("--enable-dynamic-chunking --use-v2-block-manager", "vs", "there is one scheduler"),
    IDLE("--multi-step-stream-outputs --radix-eviction-policy --num-continuous-decode-steps "
         "--performance-mode "
         "--defrag-thold -dt",
         "vls", "*", "there is one scheduler, and one KV cache in pages"),
    S_NOT("--enable-hierarchical-cache", "s", HERE "the KV cache stays where the model runs"),
    IDLE("--scheduler-cls --num-scheduler-steps --num-lookahead-slots --schedule-conservativeness "
         "--scheduler-delay-factor --preemption-mode --max-num-on-the-fly",
         "vs", "*", "there is one scheduler"),
    S_SAME("--disable-async-output-proc --disable-cascade-attn", "v", "it does not exist here"),

    /* ---- devices ---- */
    ALIAS("-ngl --gpu-layers --n-gpu-layers", "l", "0", "device=cpu"),
    OR_ALIAS("auto", "device=auto"),
    OR_ALIAS("all|-1|99..", "device=cuda"),
    OR_NOT("*", PARTS ": write -ngl all if you mean all layers"),
    ALIAS("-dev --device", "lvs", "none", "device=cpu"),
    OR_ALIAS("cuda0|cuda:0|gpu", "device=cuda"),
    OR_NOT("cuda:*|cuda1|cuda2|cuda3|cuda4|cuda5|cuda6|cuda7",
           "write CUDA_VISIBLE_DEVICES=N before the command"),
    OR_ALIAS("*", "device=$"),
    SAME("-mg --main-gpu", "l", "0", "the first GPU is used"),
    OR_NOT("*", "write CUDA_VISIBLE_DEVICES=N before the command"),
    SAME("-sm --split-mode", "l", "none|layer", "one GPU has all layers"),
    OR_NOT("*", ONE),
    NOT("-ts --tensor-split --rpc", "l", "*", ONE),
    SAME("-tp --tensor-parallel-size --tp-size --tp -pp --pipeline-parallel-size --pp-size "
         "--nnodes --ep-size "
         "--expert-parallel-size -dcp --decode-context-parallel-size -pcp "
         "--prefill-context-parallel-size",
         "vs", "1", "a server uses one GPU"),
    OR_NOT("*", ONE),
    SAME("-dp --data-parallel-size --dp-size --dp", "vs", "1", "a server uses one GPU"),
    OR_NOT("*", "run one server for each GPU, and a router before them: docs/SCALING.md"),
    NOT("-dpn --data-parallel-rank -dpr --data-parallel-start-rank -dpl --data-parallel-size-local "
        "-dpa "
        "--data-parallel-address -dpp --data-parallel-rpc-port -dpb --data-parallel-backend "
        "--master-addr --master-port "
        "--dist-init-addr",
        "vs", "*", ONE),
    NOT("--all2all-backend --dbo-* --eplb-* --expert-placement-strategy --num-redundant-experts "
        "--moe-*",
        "vs", "*", MOE),
    S_NOT("--enable-return-routed-experts", "v", MOE),
    S_NOT("--ray-workers-use-nsight --worker-use-ray --grpc-mode", "vs", ONE),
    NOT("--nccl-port --data-parallel-supervisor-port", "vs", "*", ONE),
    IDLE("--load-balance-method --gpu-id-step", "s", "*", "a server uses one GPU"),
    SAME("--base-gpu-id", "s", "0", "the first GPU is used"),
    OR_NOT("*", "write CUDA_VISIBLE_DEVICES=N before the command"),
    SAME("--node-rank", "vs", "0", "a server is one process"),
    OR_NOT("*", ONE),
    S_NOT("--headless --enable-expert-parallel --enable-dp-attention --data-parallel-hybrid-lb "
          "--data-parallel-external-lb "
          "--enable-eplb --enable-dbo",
          "vs", ONE),
    SAME("--distributed-executor-backend", "v", "mp|uni|auto", "a server is one process"),
    OR_NOT("*", ONE),
    S_SAME("--disable-custom-all-reduce --disable-nccl-for-dp-synchronization", "vs",
           "one GPU needs no NCCL"),
    SAME("--api-server-count -asc", "v", "1", "one process has all threads"),
    OR_NOT("*", "write --io-threads: one process has all threads"),
    S_SAME("--disable-frontend-multiprocessing", "v", "one process has all threads"),
    NOT("--worker-cls --worker-extension-cls --additional-config --kernel-config "
        "--external-parameters --override-neuron-config",
        "v", "*", HERE "there are no plugins"),
    NOT("-ot --override-tensor", "l", "*", PARTS),
    S_NOT("-cmoe --cpu-moe", "l", MOE),
    NOT("-ncmoe --n-cpu-moe --moe-cache-mib -ncffn --n-cpu-ffn", "l", "*", PARTS),
    S_SAME("-kvo --kv-offload --op-offload", "l", "the KV cache is where the model runs"),
    S_NOT("-nkvo --no-kv-offload --no-op-offload --no-host", "l", PARTS),
    SAME("-fit --fit", "l", "on|off", "the plan of memory is made at the start and logged"),
    IDLE("-fitt --fit-target -fitc --fit-ctx", "l", "*",
         "--gpu-memory-utilization says how much memory is used"),
    S_NOT("--list-devices", "l",
          "nvidia-smi -L lists GPUs; `roseinfer inspect MODEL` shows the plan of memory"),
    IDLE("--linear-backend --triton-attention-num-kv-splits", "vs", "*",
         "kernels are chosen for the GPU; --tune measures them"),
    S_SAME("--enable-p2p-check", "s", "a server uses one GPU"),
    S_ALIAS("--enable-layerwise-nvtx-tracing", "v", "nvtx"),
    S_ALIAS("--enforce-eager --disable-cuda-graph", "vs", "no-cuda-graph"),
    S_ALIAS("--no-enforce-eager", "v", "cuda-graph"),
    IDLE("--compilation-config -cc -O --optimization-level --max-seq-len-to-capture "
         "--cuda-graph-sizes "
         "--cudagraph-capture-sizes --max-cudagraph-capture-size --cuda-graph-max-bs "
         "--cuda-graph-bs",
         "vs", "*",
         "nothing is compiled at the start, and CUDA graphs choose their sizes (--no-cuda-graph "
         "turns them off)"),
    S_IDLE("--enable-torch-compile --disable-cuda-graph-padding", "s",
           "nothing is compiled at the start"),

    /* ---- CPU ---- */
    SAME("-t --threads", "l", "-1", "one thread for each CPU"),
    OR_ALIAS("*", "threads=$"),
    IDLE("-tb --threads-batch", "l", "*", "prompts use the threads of -t"),
    ALIAS("-Cr --cpu-range", "l", "*", "engine-cpus=$"),
    NOT("-C --cpu-mask -Cb --cpu-mask-batch -Crb --cpu-range-batch", "l", "*",
        "write --engine-cpus 0-3,6"),
    SAME("--cpu-strict --cpu-strict-batch", "l", "0", "threads are not pinned"),
    OR_ALIAS("1", "cpu-affinity"),
    SAME("--prio --prio-batch", "l", "0", "the priority is that of the command"),
    OR_NOT("*", "start the server with nice or chrt"),
    IDLE("--poll --poll-batch", "l", "*", "compute threads do not sleep while there is work"),
    NOT("--numa", "l", "*", "start the server with numactl, and pin threads with --engine-cpus"),

    /* ---- HTTP ---- */
    SAME("--threads-http", "l", "-1", "one thread serves connections"),
    OR_ALIAS("*", "io-threads=$"),
    ALIAS("--tokenizer-worker-num", "s", "*", "tokenize-workers=$"),
    IDLE("--tokenizer-pool-*", "v", "*",
         "--tokenize-workers is the number of threads that tokenise"),
    S_SAME("--sleep-on-idle", "s", "an idle server sleeps"),
    NOT("--admin-api-key", "s", "*", HERE "every key may use every path"),
    ALIAS("-to --timeout", "l", "*", "body-timeout-ms=$s write-timeout-ms=$s"),
    ALIAS("--ssl-cert-file", "l", "*", "ssl-certfile=$"),
    ALIAS("--ssl-key-file", "l", "*", "ssl-keyfile=$"),
    NOT("--ssl-ca-certs --ssl-ciphers --ssl-keyfile-password", "vs", "*",
        HERE "put a proxy before the server"),
    SAME("--ssl-cert-reqs", "v", "0", "clients need no certificate"),
    OR_NOT("*", HERE "put a proxy before the server"),
    S_NOT("--enable-ssl-refresh", "vs",
          "send SIGHUP to the server: it reads the certificate again"),
    ALIAS("--allowed-origins", "v", "[*", "allowed-origins=$l"),
    ALIAS("--cors-origins", "l", "*", "allowed-origins=$"),
    SAME("--allowed-methods --cors-methods --allowed-headers --cors-headers", "vl", "[\"*\"]",
         "origins that are allowed may use all methods and headers"),
    OR_NOT("*", "--allowed-origins is the only limit"),
    S_NOT("--allow-credentials --cors-credentials", "vl",
          HERE "keys come in a header, and there are no cookies"),
    S_SAME("--no-cors-credentials", "l", "cookies are not used"),
    S_ALIAS("--no-webui --no-ui", "l", "no-web"),
    S_ALIAS("--webui --ui", "l", "web"),
    NOT("--path --webui-config --ui-config --webui-config-file --ui-config-file", "l", "*",
        HERE "the page is built in; --no-web turns it off"),
    S_NOT("--reuse-port", "l",
          HERE "systemd or a router holds the port while servers change: docs/SERVING.md"),
    ALIAS("--api-prefix --fastapi-root-path", "ls", "*", "root-path=$"),
    ALIAS("--file-storage-path", "s", "*", "batch-dir=$"),
    NOT("--middleware --logits-processors --logits-processor-pattern --tool-parser-plugin "
        "--reasoning-parser-plugin "
        "--io-processor-plugin --tool-server",
        "v", "*", HERE "no foreign code runs in the server"),
    S_SAME("--metrics --enable-metrics", "ls", "/metrics is always there"),
    S_SAME("--no-slots", "l", "there is no /slots"),
    S_NOT("--slots", "l", HERE "/metrics and /v1/loads say what the server does"),
    S_NOT("--props", "l", HERE "properties change at the start only"),
    S_SAME("--disable-fastapi-docs --enable-tokenizer-info-endpoint --enable-prompt-tokens-details "
           "--enable-cache-report",
           "vs", "it is so anyway"),
    S_NOT("--enable-server-load-tracking", "v",
          HERE "/metrics and /v1/loads say how much work there is"),
    S_NOT("--enable-request-id-headers", "v",
          "the header X-Request-Id of a request comes back with its reply"),
    S_NOT("--enable-force-include-usage", "v", "requests ask with stream_options.include_usage"),
    S_NOT("--return-tokens-as-token-ids", "v", "requests have a field of this name"),
    S_NOT("--enable-per-request-metrics", "v", "the header Server-Timing of a reply has its times"),
    IDLE("--fingerprint-mode --fingerprint-value --cohere-format", "v", "*",
         "replies have no such field"),
    S_NOT("--enable-offline-docs", "v", HERE "docs/API.md describes the API"),
    S_IDLE("--enable-flash-late-interaction --fail-on-environ-validation", "v",
           "it does not exist here"),
    SAME("--response-role", "v", "assistant", "replies have this role"),
    OR_NOT("*", HERE "replies have the role assistant"),
    IDLE("--h11-max-incomplete-event-size --h11-max-header-count", "v", "*",
         "headers have fixed limits; see docs/SERVING.md"),
    ALIAS("--sse-ping-interval", "l", "-1", "sse-ping-s=0"),
    OR_ALIAS("*", "sse-ping-s=$"),
    SAME("--sleep-idle-seconds", "l", "-1", "the model stays loaded"),
    OR_NOT("*", YET "the model stays loaded"),
    S_NOT("--enable-sleep-mode --enable-memory-saver", "vs", YET "the model stays loaded"),
    NOT("--slot-save-path --media-path --allowed-local-media-path --allowed-media-domains", "vl",
        "*", HERE "requests read and write no files of the server"),
    NOT("--models-dir --models-preset --models-max", "l", "*",
        HERE "a server has one model; run one server for each"),
    S_NOT("--ui-mcp-proxy --webui-mcp-proxy --models-autoload --no-models-autoload --agent -ag "
          "--tokens-only",
          "lv", HERE "a server has one model and no tools of its own"),
    NOT("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", "l", "*",
        HERE "the client runs tools"),
    S_SAME("--no-agent -no-ag --no-ui-mcp-proxy --no-webui-mcp-proxy", "l",
           "the server runs no tools"),
    NOT("--profiler-config", "v", "*", "write --profiler-dir DIR"),

    /* ---- logs ---- */
    ALIAS("--uvicorn-log-level --log-level --log-level-http", "vs", "critical", "log-level=error"),
    OR_ALIAS("warning", "log-level=warn"),
    OR_ALIAS("trace", "log-level=debug"),
    OR_ALIAS("*", "log-level=$"),
    S_ALIAS("-v --verbose --log-verbose", "l", "log-level=debug"),
    ALIAS("-lv --verbosity --log-verbosity", "l", "0|1", "log-level=error"),
    OR_ALIAS("2", "log-level=warn"),
    OR_ALIAS("3", "log-level=info"),
    OR_ALIAS("4..", "log-level=debug"),
    S_ALIAS("--log-disable", "l", "log-level=off"),
    NOT("--log-file --log-config-file", "vl", "*", "write 2>FILE: the log goes to standard error"),
    IDLE("--log-colors", "l", "*", "the log has no colours"),
    S_SAME("--log-prefix --log-timestamps", "l", "lines of the log have both"),
    S_IDLE("--no-log-prefix --no-log-timestamps --log-jsonl --no-log-jsonl", "l",
           "lines of the log have one form"),
    S_SAME("--disable-log-requests --no-enable-log-requests --disable-uvicorn-access-log "
           "--no-enable-log-outputs",
           "v", "requests are logged with --access-log only, without their texts"),
    S_NOT("--enable-log-requests --log-requests --enable-log-outputs", "vs",
          "--access-log FILE writes a line for each request; texts are never logged"),
    NOT("--log-prompts-dir", "l", "*",
        HERE "texts are never logged; --access-log FILE writes a line for each request"),
    IDLE("--max-log-len --disable-access-log-for-endpoints --log-requests-level", "vs", "*",
         "texts are never logged"),
    S_SAME("--disable-log-stats --no-disable-log-stats --aggregate-engine-logging --show-time-cost",
           "vs", "figures are in /metrics, not in the log"),
    S_SAME("--perf --no-perf --warmup --no-warmup --skip-server-warmup -e --escape --no-escape",
           "ls", "it changes no reply"),
    S_IDLE("--enable-log-deltas --no-enable-log-deltas --log-error-stack "
           "--enable-logging-iteration-details",
           "v", "texts and steps are not logged"),
    IDLE("--decode-log-interval --warmups", "s", "*",
         "steps are not logged, and the server warms up by itself"),
    S_IDLE("--kv-cache-metrics --cudagraph-metrics --enable-mfu-metrics", "vs",
           "docs/METRICS.md lists the metrics"),
    IDLE("--kv-cache-metrics-sample", "v", "*", "docs/METRICS.md lists the metrics"),
    NOT("--crash-dump-folder", "s", "*", HERE "texts are never logged"),
    S_NOT("--enable-trace", "s", HERE "/metrics has figures, and --profiler-dir allows recordings"),
    S_NOT("--version --license --cache-list -cl --completion-bash", "l",
          "write `roseinfer --version`, or `roseinfer completion bash`"),
    NOT("--otlp-traces-endpoint --collect-detailed-traces", "v", "*",
        HERE "/metrics has figures, and --profiler-dir allows recordings"),
    NOT("--show-hidden-metrics-for-version", "v", "*", "docs/METRICS.md lists the metrics"),

    /* ---- chats, tools, reasoning ---- */
    S_SAME("--jinja", "l", "templates are Jinja"),
    S_NOT("--no-jinja", "l",
          "templates are Jinja; --chat-template takes a file, a text, chatml or plain"),
    ALIAS("--chat-template-file", "l", "*", "chat-template=$"),
    NOT("--chat-template", "l",
        "bailing|bailing-think|bailing2|chatglm3|chatglm4|command-r|deepseek|deepseek-ocr|"
        "deepseek2|deepseek3|"
        "exaone-moe|exaone3|exaone4|falcon3|gemma|gigachat|glmedge|gpt-oss|granite|granite-4.0|"
        "granite-4.1|grok-2|"
        "hunyuan-dense|hunyuan-moe|hunyuan-vl|kimi-k2|llama2|llama2-sys|llama2-sys-bos|llama2-sys-"
        "strip|llama3|llama4|"
        "megrez|minicpm|mistral-v1|mistral-v3|mistral-v3-tekken|mistral-v7|mistral-v7-tekken|"
        "monarch|openchat|orion|"
        "pangu-embedded|phi3|phi4|rwkv-world|seed_oss|smolvlm|solar-open|vicuna|vicuna-orca|yandex|"
        "zephyr",
        "this is a template built into llama-server. Leave the option out to take the model's own, "
        "or give a file, a text, "
        "chatml or plain"),
    ALIAS("--default-chat-template-kwargs", "v", "*", "chat-template-kwargs=$"),
    SAME("--chat-template-content-format", "v", "auto",
         "the form that the template takes is found out"),
    OR_NOT("*",
           HERE "the form that the template takes is found out at the start; leave the option out"),
    M_SAME("--enable-auto-tool-choice", "v", ON, "calls of tools are read with every model"),
    S_SAME("--enable-reasoning", "v", "--reasoning-parser auto finds the format"),
    ALIAS("--tool-call-parser", "vs", "qwen3_coder", "tool-call-parser=qwen3_xml"),
    OR_ALIAS("llama3|llama4_json", "tool-call-parser=llama3_json"),
    OR_ALIAS("qwen|qwen25", "tool-call-parser=hermes"),
    ALIAS("--reasoning-parser", "vs", "deepseek-r1", "reasoning-parser=deepseek_r1"),
    S_NOT("--exclude-tools-when-tool-choice-none", "v", HERE "leave the tools out of the request"),
    ALIAS("--reasoning-format", "l", "none", "reasoning-parser=none"),
    OR_ALIAS("auto|deepseek", "reasoning-parser=auto"),
    OR_NOT("*", HERE "reasoning is in reasoning_content, or with none in content"),
    SAME("--reasoning-budget", "l", "-1", "reasoning has no limit of its own"),
    OR_ALIAS("0", "chat-template-kwargs={\"enable_thinking\":false}"),
    OR_NOT("*", YET "a limit of reasoning; 0 turns it off"),
    NOT("--reasoning-budget-message", "l", "*", YET "a limit of reasoning"),
    ALIAS("-rea --reasoning", "l", "off", "chat-template-kwargs={\"enable_thinking\":false}"),
    OR_ALIAS("on", "chat-template-kwargs={\"enable_thinking\":true}"),
    OR_SAME("auto", "the template decides"),
    SAME("--reasoning-effort", "l", "default", "the template decides"),
    OR_NOT("*", "write --chat-template-kwargs '{\"reasoning_effort\": \"low\"}'"),
    S_ALIAS("--skip-chat-parsing", "l", "tool-call-parser=none reasoning-parser=none"),
    S_SAME("--no-skip-chat-parsing --reasoning-preserve", "l",
           "the template decides what it shows"),
    S_NOT("--no-reasoning-preserve", "l",
          "the template decides what it shows; --chat-template-kwargs sets its variables"),
    S_NOT("--prefill-assistant --no-prefill-assistant", "l",
          "requests ask with continue_final_message"),
    S_NOT("-sp --special", "l", "requests ask with skip_special_tokens false"),

    /* ---- sampling ---- */
    ALIAS("--sampling-defaults", "s", "model", "generation-config=auto"),
    OR_ALIAS("openai", "generation-config=none"),
    NOT("--completion-template --preferred-sampling-params", "s", "*", CLI),
    M_NOT("--guided-decoding-disable-* --constrained-json-*", "vs", "*",
          HERE "the schema of a request says what is allowed"),
    SAME("-s --seed --random-seed", "vls", "-1", "requests without a seed get a random one"),
    OR_ALIAS("*", "seed=$"),
    ROW("--temp --temperature", "l", VALUE, ALIAS, "*", "@temperature=$", SAMPLING "temperature"),
    ROW("--top-k", "l", VALUE, ALIAS, "*", "@top_k=$", SAMPLING "top_k"),
    ROW("--top-p", "l", VALUE, ALIAS, "*", "@top_p=$", SAMPLING "top_p"),
    ROW("--min-p", "l", VALUE, ALIAS, "*", "@min_p=$", SAMPLING "min_p"),
    ROW("--repeat-penalty", "l", VALUE, ALIAS, "*", "@repetition_penalty=$",
        SAMPLING "repetition_penalty"),
    SAME("-n --predict --n-predict", "l", "-1", "a reply is as long as the context allows"),
    ROW(NULL, NULL, VALUE, ALIAS, "*", "@max_new_tokens=$",
        SAMPLING "max_new_tokens, the default of max_tokens for chats"),
    NOT("--max-logprobs", "v", "21..|-1", HERE "requests may ask for up to 20 log-probabilities"),
    OR_SAME("*", "requests may ask for up to 20 log-probabilities"),
    SAME("--logprobs-mode", "v", "raw_logprobs", "log-probabilities are those of the model"),
    OR_NOT("*", HERE "log-probabilities are those of the model"),
    NOT("--samplers --sampler-seq --sampling-seq", "l", "*",
        HERE "the order of samplers is fixed: docs/API.md"),
    S_NOT("--ignore-eos", "l", CLI),
    SAME("--top-nsigma --top-n-sigma --adaptive-target", "l", "-1", "it is off"),
    OR_NOT("*", HERE "top-k, top-p and min-p choose tokens"),
    SAME("--xtc-probability --dry-multiplier --mirostat --dynatemp-range", "l", "0", "it is off"),
    OR_NOT("*", HERE "top-k, top-p and min-p choose tokens"),
    SAME("--typical --typical-p --xtc-threshold --dynatemp-exp", "l", "1", "it is off"),
    OR_NOT("*", HERE "top-k, top-p and min-p choose tokens"),
    IDLE("--dry-* --mirostat-lr --mirostat-ent --adaptive-decay", "l", "*", "it is off"),
    NOT("--repeat-last-n", "l", "*", HERE "penalties see all tokens of prompt and reply"),
    SAME("--presence-penalty --frequency-penalty", "l", "0", "it is off"),
    OR_NOT("*", CLI),
    NOT("-l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file -r "
        "--reverse-prompt",
        "l", "*", CLI),

    /* ---- what is missing ---- */
    S_NOT("--enable-lora --enable-prompt-adapter --fully-sharded-loras --lora-init-without-apply "
          "--enable-lora-bias",
          "vls", LORA),
    NOT("--lora --lora-scaled --lora-modules --lora-paths --max-loras --max-lora-rank "
        "--max-cpu-loras --lora-dtype "
        "--lora-extra-vocab-size --long-lora-scaling-factors --max-prompt-adapter* "
        "--prompt-adapters --max-loras-per-batch --lora-target-modules "
        "--qlora-adapter-name-or-path "
        "--control-vector*",
        "vls", "*", LORA),
    S_SAME("--no-enable-lora --no-enable-sleep-mode --no-enable-expert-parallel --no-enable-eplb "
           "--no-enable-dbo",
           "v", "it is off"),
    ALIAS("-sc", "v", "*", "speculative-config=$"),
    SAME("--speculative-algorithm --speculative-algo", "s", "ngram",
         "guesses from the text need no option"),
    OR_NOT("*", SPEC),
    ALIAS("--spec-type", "l", "none", "no-speculation"),
    OR_SAME(SPEC_NGRAM, "guesses from the text need no option"),
    OR_NOT(SPEC_DRAFT, SPEC),
    ROW(NULL, NULL, VALUE, ALIAS, "*", "@spec=$",
        "accepted: several of ngram-* with commas between; refused by name: any other in such a "
        "list"),
    S_SAME("--spec-default", "l", "guesses from the text need no option"),
    S_NOT("-cmoed --cpu-moe-draft", "l", SPEC),
    NOT("-hfrd -tbd --threads-batch-draft -Cd --cpu-mask-draft -Crd --cpu-range-draft "
        "--cpu-strict-draft --prio-draft "
        "--poll-draft -Cbd --cpu-mask-batch-draft --cpu-strict-batch-draft --prio-batch-draft "
        "--poll-batch-draft -otd "
        "--override-tensor-draft -ncmoed --n-cpu-moe-draft "
        "--speculative-model* --speculative-draft-* --speculative-num-* --speculative-eagle-* "
        "--speculative-accept-* --speculative-token-map* --speculative-attention-* "
        "--speculative-moe-* --speculative-ngram-* --speculative-disable-* "
        "--num-speculative-tokens --ngram-prompt-lookup-* --spec-* -md "
        "--model-draft -hfd --hf-repo-draft "
        "-ngld --gpu-layers-draft --n-gpu-layers-draft -devd --device-draft --draft* -cd "
        "--ctx-size-draft -td "
        "--threads-draft -ctkd --cache-type-k-draft -ctvd --cache-type-v-draft -lcs "
        "--lookup-cache-static -lcd "
        "--lookup-cache-dynamic",
        "vls", "*", SPEC),
    S_SAME("--no-spec-draft-backend-sampling", "l", "there are no draft models"),
    S_ALIAS("--no-spec-default", "l", "no-speculation"),
    S_NOT("--enable-multimodal-encoder-data-parallel --enable-prompt-embeds --enable-mm-embeds "
          "--interleave-mm-strings --enable-multimodal",
          "vs", TEXT),
    S_SAME("--no-mmproj --no-mmproj-auto --mmproj-auto --mmproj-offload --no-mmproj-offload "
           "--skip-mm-profiling "
           "--disable-mm-preprocessor-cache --language-model-only --disable-chunked-mm-input",
           "vl", "models take text only"),
    SAME("--limit-mm-per-prompt", "v", "*", "models take text only"),
    NOT("-mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device --image-min-tokens "
        "--image-max-tokens --mtmd-* --video-* "
        "--mm-* --media-io-kwargs --default-mm-loras",
        "vl", "*", TEXT),
    NOT("--disaggregation-* --ec-transfer-config", "vs", "*",
        HERE "a server does both prefill and decode"),
    NOT("--watchdog-timeout", "s", "*",
        "write --device-timeout-ms: the time after which the GPU counts as lost"),
    S_NOT("--spm-infill --allow-auto-truncate --rerank-truncate", "ls", CLI),
    S_NOT("--embd-gemma-default --fim-* --gpt-oss-* --vision-*", "l",
          "give the model: -hf ORG/NAME:QUANT"),
};

/* ---- options that depend on each other ---- */

/* Finds the last pair with this name, or NULL. */
static const rose_foreign_pair *last(const rose_foreign_taken *t, const char *name)
{
    for (size_t i = t->n; i-- > 0;) {
        if (strcmp(t->pairs[i].name, name) == 0) return &t->pairs[i];
    }
    return NULL;
}

/* -c counts the tokens of all slots of -np, unless they share them. A text that is no number goes
 * to our option, which refuses it. */
static int share_context(rose_foreign_taken *t)
{
    const rose_foreign_pair *ctx = last(t, "@ctx"), *slots = last(t, "@slots");
    const char *from = ctx != NULL ? ctx->from : NULL, *len = ctx != NULL ? ctx->value : NULL;
    uint64_t n, p;
    if (ctx != NULL && slots != NULL && last(t, "@shared") == NULL &&
        rose_opt_number(ctx->value, false, &n) && rose_opt_number(slots->value, false, &p) &&
        p > 0 && n > 0) {
        from = rose_foreign_keep(t, "%s %s", ctx->from, slots->from);
        len = rose_foreign_keep(t, "%llu", (unsigned long long)(n / p));
        if (from == NULL || len == NULL) return rose_foreign_no_memory();
        if (n < p) {
            fprintf(stderr, "roseinfer: %s: no token is left for a slot\n", from);
            return 2;
        }
    }
    if (slots != NULL && !rose_foreign_add(t, slots->from, "max-num-seqs", slots->value))
        return rose_foreign_no_memory();
    if (len != NULL && !rose_foreign_add(t, from, "max-model-len", len))
        return rose_foreign_no_memory();
    return -1;
}

/* llama-server takes the type Q4_K_M of a repository if none is named. */
static int name_repository(rose_foreign_taken *t)
{
    const rose_foreign_pair *repo = last(t, "@repo");
    if (repo == NULL) return -1;
    const bool typed = strchr(repo->value, ':') != NULL;
    const char *from = repo->from,
               *name = rose_foreign_keep(t, "%s%s", repo->value, typed ? "" : ":Q4_K_M");
    return name != NULL && rose_foreign_add(t, from, "MODEL", name) ? -1 : rose_foreign_no_memory();
}

/* The sampling defaults together are one option, --override-generation-config. */
static int join_sampling(rose_foreign_taken *t)
{
    static const char *const names[] = {"@temperature",        "@top_k",         "@top_p", "@min_p",
                                        "@repetition_penalty", "@max_new_tokens"};
    const char *json = "", *from = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const rose_foreign_pair *p = last(t, names[i]);
        char *end;
        if (p == NULL) continue;
        const double x = strtod(p->value, &end);
        if (!isfinite(x) || end == p->value || *end != '\0') {
            fprintf(stderr, "roseinfer: %s: expected a number\n", p->from);
            return 2;
        }
        json = rose_foreign_keep(t, "%s%s\"%s\":%.15g", json, *json != '\0' ? "," : "",
                                 names[i] + 1, x);
        from = rose_foreign_keep(t, "%s%s%s", from, *from != '\0' ? " " : "", p->from);
        if (json == NULL || from == NULL) return rose_foreign_no_memory();
    }
    if (*json == '\0') return -1;
    json = rose_foreign_keep(t, "{%s}", json);
    return json != NULL && rose_foreign_add(t, from, "override-generation-config", json)
               ? -1
               : rose_foreign_no_memory();
}

/* True if word[0..len) is in a list with '|' between. */
static bool in_list(const char *list, const char *word, size_t len)
{
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, "|");
        if (n == len && strncasecmp(p, word, len) == 0) return true;
        p += n;
        if (*p == '\0') return false;
    }
}

/* Refuses a list of --spec-type at its first name that is not served here. */
static int check_spec_types(const rose_foreign_taken *t)
{
    const rose_foreign_pair *spec = last(t, "@spec");
    if (spec == NULL) return -1;
    const char *p = spec->value;
    size_t n = strcspn(p, ",");
    for (; in_list(SPEC_NGRAM, p, n); n = strcspn(p, ",")) {
        if (p[n] == '\0') return -1;
        p += n + 1;
    }
    fprintf(stderr, "roseinfer: %s: ", spec->from);
    if (in_list(SPEC_DRAFT, p, n))
        fprintf(stderr, "%.*s: " SPEC "; leave it out of the list\n", (int)n, p);
    else if (in_list("none", p, n))
        fprintf(stderr, "none stands alone; leave it out of the list\n");
    else
        fprintf(stderr,
                "there is no type '%.*s'; expected one of none|" SPEC_NGRAM
                ", or several of ngram-* "
                "with commas between\n",
                (int)n, p);
    return 2;
}

static int finish(rose_foreign_taken *t)
{
    int rc = share_context(t);
    if (rc < 0) rc = check_spec_types(t);
    if (rc < 0) rc = name_repository(t);
    return rc < 0 ? join_sampling(t) : rc;
}

int rose_serve_foreign_check(const rose_foreign_taken *t, const char *model)
{
    const rose_foreign_pair *tok = last(t, "@tokenizer");
    if (tok == NULL || strcmp(model, tok->value) == 0) return -1;
    fprintf(stderr,
            "roseinfer: %s: a model has the tokenizer of its own folder; leave the option out, or "
            "put the other tokenizer's files into a folder with config.json and links to the "
            "weights\n",
            tok->from);
    return 2;
}

const rose_foreign_set rose_serve_foreign = {
    .rows = rows, .n = sizeof rows / sizeof *rows, .finish = finish};
