"""TensorRT-LLM's LLM.generate on token ids; see driver.py."""
import sys

from driver import Workload, run
from tensorrt_llm import LLM, SamplingParams

if __name__ == "__main__":  # its worker processes import this file again
    w = Workload(sys.argv)
    args = {"model": w.model, "max_batch_size": w.max_batch_size, "skip_tokenizer_init": True, **w.extra}
    llm = LLM(**args)

    def generate(r):
        params = [SamplingParams(temperature=w.temperature, top_p=w.top_p, top_k=w.top_k or None, ignore_eos=True,
                                 max_tokens=n, end_id=-1, seed=(r["seed"] + i) % (1 << 63) if w.send_seed else None, detokenize=False)
                  for i, n in enumerate(r["output_lens"])]
        return [len(o.outputs[0].token_ids) for o in llm.generate(r["prompts"], params, use_tqdm=False)]

    run(w, generate, ["tensorrt_llm", "torch", "transformers"], stop=llm.shutdown)
