"""vLLM's LLM.generate on token ids, without detokenising; see driver.py."""
import sys

from driver import Workload, run

here = sys.path.pop(0)  # this folder, where vllm.py stands, must not hide the package
from vllm import LLM, SamplingParams  # noqa: E402
sys.path.insert(0, here)  # its worker processes import this file again

if __name__ == "__main__":
    w = Workload(sys.argv)
    args = {"model": w.model, "max_num_seqs": w.max_batch_size, "skip_tokenizer_init": True, **w.extra}
    llm = LLM(**args)

    def generate(r):
        params = [SamplingParams(temperature=w.temperature, top_p=w.top_p, top_k=w.top_k or -1, ignore_eos=True,
                                 max_tokens=n, seed=r["seed"] + i if w.send_seed else None, detokenize=False)
                  for i, n in enumerate(r["output_lens"])]
        prompts = [{"prompt_token_ids": p} for p in r["prompts"]]
        return [len(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]

    run(w, generate, ["vllm", "torch", "transformers"])
