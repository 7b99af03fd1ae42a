"""llama.cpp through llama-cpp-python's low-level binding: continuous batching by hand, one llama_decode a step; see
driver.py. The model is a GGUF file (--llama-model).

Options of its own: threads, n_gpu_layers (0), n_ubatch (512)."""
import ctypes
import os
import sys
import time

import llama_cpp as ll
from driver import Workload, run

if __name__ == "__main__":
    w = Workload(sys.argv)
    threads = w.extra.get("threads", len(os.sched_getaffinity(0)))
    n_ubatch = w.extra.get("n_ubatch", 512)
    ll.llama_backend_init()
    quiet = ll.llama_log_callback(lambda level, text, user: None)
    ll.llama_log_set(quiet, ctypes.c_void_p(0))
    mp = ll.llama_model_default_params()
    mp.n_gpu_layers = w.extra.get("n_gpu_layers", 0)
    model = ll.llama_model_load_from_file(w.model.encode(), mp)
    if not model:
        sys.exit("llama.cpp cannot load %s" % w.model)
    n_seqs = min(w.max_batch_size, max(len(r["prompts"]) for r in w.runs), 256)
    cp = ll.llama_context_default_params()
    cp.n_ctx = n_seqs * (w.longest + 1)
    cp.n_seq_max = n_seqs
    cp.n_batch = max(2048, n_seqs)
    cp.n_ubatch = n_ubatch
    cp.n_threads = cp.n_threads_batch = threads
    ctx = ll.llama_init_from_model(model, cp)
    if not ctx:
        sys.exit("llama.cpp cannot make a context of %d tokens" % cp.n_ctx)
    memory = ll.llama_get_memory(ctx)
    batch = ll.llama_batch_init(cp.n_batch, 0, 1)

    def make_sampler(seed):
        chain = ll.llama_sampler_chain_init(ll.llama_sampler_chain_default_params())
        if w.temperature > 0:
            if w.top_k > 0:
                ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_top_k(w.top_k))
            ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_top_p(w.top_p, 1))
            ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_temp(w.temperature))
            ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_dist(seed & 0xFFFFFFFF))
        else:
            ll.llama_sampler_chain_add(chain, ll.llama_sampler_init_greedy())
        return chain

    def put(token, pos, seq, wants):
        i = batch.n_tokens
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, pos, 1, seq, wants
        batch.n_tokens = i + 1
        return i

    def generate(r):
        """Each step: a token of every sequence that decodes, then prompt pieces while the batch has room. Rows go in order
        of the sequence's number: llama.cpp makes one pass only of those that ascend (else 4 streams take twice the time)."""
        prompts, lens = r["prompts"], r["output_lens"]
        got, free, waiting, live = [0] * len(prompts), list(range(n_seqs))[::-1], list(range(len(prompts)))[::-1], {}
        first, last = [0.0] * len(prompts), [0.0] * len(prompts)
        ll.llama_memory_clear(memory, True)
        while waiting or live:
            while waiting and free:
                i = waiting.pop()
                live[i] = {"seq": free.pop(), "at": 0, "last": None, "sampler": make_sampler(r["seed"] + i)}
            live = dict(sorted(live.items(), key=lambda item: item[1]["seq"]))
            batch.n_tokens, rows = 0, {}
            for i, s in live.items():
                if s["last"] is not None:
                    rows[i] = put(s["last"], s["at"], s["seq"], True)
                    s["at"] += 1
            for i, s in live.items():
                while s["last"] is None and s["at"] < len(prompts[i]) and batch.n_tokens < cp.n_batch:
                    end = s["at"] + 1 == len(prompts[i])
                    row = put(prompts[i][s["at"]], s["at"], s["seq"], end)
                    s["at"] += 1
                    if end:
                        rows[i] = row
            if ll.llama_decode(ctx, batch) != 0:
                sys.exit("llama_decode failed")
            for i, row in rows.items():
                s = live[i]
                s["last"] = ll.llama_sampler_sample(s["sampler"], ctx, row)
                last[i] = time.perf_counter()
                first[i] = first[i] or last[i]
                got[i] += 1
                if got[i] == lens[i]:
                    ll.llama_memory_seq_rm(memory, s["seq"], -1, -1)
                    ll.llama_sampler_free(s["sampler"])
                    free.append(s["seq"])
                    del live[i]
        return got, first, last

    run(w, generate, ["llama_cpp_python"], device="cpu, %d threads" % threads if mp.n_gpu_layers == 0 else None)
