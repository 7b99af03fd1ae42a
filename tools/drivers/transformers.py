"""transformers' model.generate in static batches, left-padded; see driver.py.

Options of its own: device (auto), dtype (float32), threads. A batch has at most max_batch_size prompts, in order of
length so that little is padding, and runs until its longest output is done; tokens past a shorter one's length do not
count."""
import os
import sys
import time

sys.path.pop(0)  # this folder, where transformers.py stands, must not hide the package
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from transformers.generation import BaseStreamer  # noqa: E402

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from driver import Workload, run  # noqa: E402

if __name__ == "__main__":
    w = Workload(sys.argv)
    device = w.extra.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    if "threads" in w.extra:
        torch.set_num_threads(w.extra["threads"])
    dtype = getattr(torch, w.extra.get("dtype", "float32"))
    model = AutoModelForCausalLM.from_pretrained(w.model, dtype=dtype).to(device).eval()
    sampling = {"do_sample": w.temperature > 0}
    if w.temperature > 0:
        sampling.update(temperature=w.temperature, top_p=w.top_p, top_k=w.top_k)

    class Stamps(BaseStreamer):
        """When each step's tokens were there; the first call is the prompt."""

        def __init__(self):
            self.at = []

        def put(self, value):
            self.at.append(time.perf_counter())

        def end(self):
            pass

    @torch.inference_mode()
    def one_batch(prompts, n_out):
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, p in enumerate(prompts):
            ids[i, longest - len(p):] = torch.tensor(p)
            mask[i, longest - len(p):] = 1
        stamps = Stamps()
        out = model.generate(ids.to(device), attention_mask=mask.to(device), min_new_tokens=n_out, max_new_tokens=n_out,
                             pad_token_id=0, eos_token_id=None, streamer=stamps, **sampling)
        return out.shape[1] - longest, stamps.at[1:]

    def generate(r):
        torch.manual_seed(r["seed"])
        order = sorted(range(len(r["prompts"])), key=lambda i: (r["output_lens"][i], len(r["prompts"][i])))
        got, first, last = [0] * len(order), [0.0] * len(order), [0.0] * len(order)
        for at in range(0, len(order), w.max_batch_size):
            part = order[at:at + w.max_batch_size]
            n, at = one_batch([r["prompts"][i] for i in part], max(r["output_lens"][i] for i in part))
            for i in part:
                got[i] = min(n, r["output_lens"][i])
                first[i], last[i] = at[0], at[got[i] - 1]
        return got, first, last

    name = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu, %d threads" % torch.get_num_threads()
    run(w, generate, ["transformers", "torch"], device=name)
