"""SGLang's Engine.generate on token ids; see driver.py."""
import sys

from driver import Workload, run

here = sys.path.pop(0)  # this folder, where sglang.py stands, must not hide the package
import sglang  # noqa: E402
sys.path.insert(0, here)  # its worker processes import this file again

if __name__ == "__main__":
    w = Workload(sys.argv)
    args = {"model_path": w.model, "max_running_requests": w.max_batch_size, "skip_tokenizer_init": True, **w.extra}
    engine = sglang.Engine(**args)

    def generate(r):
        params = [{"temperature": w.temperature, "top_p": w.top_p, "top_k": w.top_k or -1, "ignore_eos": True,
                   "max_new_tokens": n} for n in r["output_lens"]]
        outs = engine.generate(input_ids=r["prompts"], sampling_params=params)
        return [o["meta_info"]["completion_tokens"] for o in outs]

    run(w, generate, ["sglang", "torch", "transformers"], stop=engine.shutdown)
