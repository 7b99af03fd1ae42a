#!/usr/bin/env python3
"""`compare.py BINARY MODEL`: lm-eval twice over the same tasks, through `--model local-completions` against
`BINARY serve MODEL --dtype float32`, and through `--model hf` in float32. Every log-likelihood must agree within
0.0002 + 0.00001 of its size, and every is_greedy flag be equal; greedy text must be the same. Closes with `N passed, N failed`.

The tasks are made here of tests/golden/held-out.txt, without any download: which sentence and which word comes next
(multiple_choice), the likelihood of each paragraph (loglikelihood_rolling), and a continuation (generate_until).
"""
import glob
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading

BIN, MODEL = sys.argv[1], os.path.abspath(sys.argv[2])
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
ABS, REL = 2e-4, 1e-5  # float32 sums in another order, over up to 500 tokens
ENV = dict(os.environ, HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
           OPENAI_API_KEY="none")
YAML = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
{rest}metadata:
  version: 1
"""
CHOICE = ("multiple_choice", "doc_to_text: \"{{context}}\"\ndoc_to_choice: \"{{choices}}\"\ndoc_to_target: \"{{label}}\"\n"
          "metric_list:\n  - metric: acc\n  - metric: acc_norm\n")
TASKS = {
    "rose_next": CHOICE,
    "rose_word": CHOICE,
    "rose_rolling": ("loglikelihood_rolling", "doc_to_text: \"\"\ndoc_to_target: \"{{text}}\"\nmetric_list:\n"
                     "  - metric: word_perplexity\n  - metric: bits_per_byte\n"),
    "rose_text": ("generate_until", "doc_to_text: \"{{context}}\"\ndoc_to_target: \"{{text}}\"\ngeneration_kwargs:\n"
                  "  until: [\"\\n\\n\"]\n  max_gen_toks: 24\n  do_sample: false\nmetric_list:\n  - metric: exact_match\n"),
}


def documents(text):
    """Of the held-out text, by task."""
    rng = random.Random(20261121)
    paragraphs = [" ".join(p.split("\n")) for p in text.split("\n\n") if p.strip()]
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?])\s+", p) if len(s) > 8]
    chosen = []
    for i in range(2, len(sentences)):
        wrong = rng.sample([s for s in sentences if s != sentences[i]], 3)
        label = rng.randrange(4)
        chosen.append({"context": " ".join(sentences[max(0, i - 3):i]), "label": label,
                       "choices": wrong[:label] + [sentences[i]] + wrong[label:]})
    words, common, next_word = text.split(), ["the", "and", "a", "of", "to", "was"], []
    for i in range(20, len(words), 5):
        others = [w for w in common if w != words[i]][:3]
        next_word.append({"context": " ".join(words[max(0, i - 60):i]), "label": 0, "choices": [words[i]] + others})
    return {"rose_next": chosen, "rose_word": next_word, "rose_rolling": [{"text": p} for p in paragraphs] + [{"text": text[:1500]}],
            "rose_text": [{"context": c["context"], "text": c["choices"][c["label"]]} for c in chosen[::4]]}


def write_tasks(folder):
    with open(os.path.join(ROOT, "tests/golden/held-out.txt"), encoding="utf-8") as f:
        docs = documents(f.read())
    for task, (kind, rest) in TASKS.items():
        data = os.path.join(folder, task + ".jsonl")
        with open(data, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(d) + "\n" for d in docs[task])
        with open(os.path.join(folder, task + ".yaml"), "w", encoding="utf-8") as f:
            f.write(YAML.format(task=task, data=data, kind=kind, rest=rest))


def lm_eval(folder, name, model, args, batch):
    """Responses of each task: a list of documents, each a list of responses."""
    out = os.path.join(folder, name)
    command = [os.path.join(os.path.dirname(sys.executable), "lm_eval"), "--model", model, "--model_args", args, "--tasks",
               ",".join(TASKS), "--include_path", folder, "--output_path", out, "--log_samples", "--batch_size", batch,
               "--device", "cpu"]
    print("lm_eval --model", model, "--model_args", args.replace(MODEL, "MODEL"), flush=True)
    p = subprocess.run(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if p.returncode:
        raise RuntimeError(p.stdout.decode("utf-8", "replace")[-6000:])
    result = {}
    for task in TASKS:
        path = sorted(glob.glob(f"{out}/**/samples_{task}_*.jsonl", recursive=True))[-1]
        with open(path, encoding="utf-8") as f:
            rows = sorted((json.loads(line) for line in f), key=lambda r: r["doc_id"])
        result[task] = [[r[0] for r in row["resps"]] for row in rows]
    table = p.stdout.decode("utf-8", "replace")
    print("\n".join(line for line in table.splitlines() if line.startswith("|")), flush=True)
    return result


class Server:
    def __enter__(self):
        self.p = subprocess.Popen([BIN, "serve", MODEL, "--port", "0", "--dtype", "float32"], stderr=subprocess.PIPE)
        for line in self.p.stderr:
            m = re.search(rb"listening on http://[^ ]*:(\d+)", line)
            if m:
                self.port = int(m.group(1))
                break
        else:
            raise RuntimeError("the server did not start")
        threading.Thread(target=self.p.stderr.read, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.p.terminate()
        self.p.wait(60)


def compare(ours, theirs):
    """Prints a line for each task; the number of differing responses."""
    failed = n_all = 0
    for task in ("rose_next", "rose_word", "rose_rolling"):
        pairs = [(a, b) for x, y in zip(ours[task], theirs[task]) for a, b in zip(x, y)]
        if task == "rose_rolling":  # a bare log-likelihood, in some versions with a flag
            pairs = [((a if isinstance(a, list) else [a, None])[0], (b if isinstance(b, list) else [b, None])[0])
                     for a, b in pairs]
            pairs = [([float(a), None], [float(b), None]) for a, b in pairs]
        pairs = [((float(a[0]), str(a[1])), (float(b[0]), str(b[1]))) for a, b in pairs]
        bad = [(a, b) for a, b in pairs if abs(a[0] - b[0]) > ABS + REL * abs(b[0]) or a[1] != b[1]]
        worst = max(abs(a[0] - b[0]) for a, b in pairs)
        greedy = sum(b[1] == "True" for _, b in pairs)
        print(f"{task}: {len(pairs)} log-likelihoods from {min(b[0] for _, b in pairs):.1f} to "
              f"{max(b[0] for _, b in pairs):.1f}, {greedy} greedy; largest difference {worst:.6f}; {len(bad)} differ")
        print("".join(f"    {a} {b}\n" for a, b in bad[:5]), end="")
        failed, n_all = failed + len(bad), n_all + len(pairs)
    texts = [(a[0], b[0]) for a, b in zip(ours["rose_text"], theirs["rose_text"])]
    bad = [(a, b) for a, b in texts if a.strip() != b.strip()]
    print(f"rose_text: {len(texts)} greedy continuations, {len(bad)} differ")
    print("".join(f"    {a!r}\n    {b!r}\n" for a, b in bad[:5]), end="")
    sound = all(len(ours[t]) == len(theirs[t]) > 0 for t in TASKS)
    return failed + len(bad) + (not sound), n_all + len(texts)


def main():
    with tempfile.TemporaryDirectory() as folder:
        ENV["HF_DATASETS_CACHE"] = os.path.join(folder, "cache")
        write_tasks(folder)
        theirs = lm_eval(folder, "hf", "hf", f"pretrained={MODEL},dtype=float32,max_length=511", "1")
        failed = n = 0
        with Server() as s:
            url = f"base_url=http://127.0.0.1:{s.port}/v1/completions,model={os.path.basename(MODEL)},tokenizer={MODEL}"
            for more, batch in (("num_concurrent=4", "1"), ("num_concurrent=1", "16"),
                                ("num_concurrent=4,tokenized_requests=False", "1")):
                args = f"{url},tokenizer_backend=huggingface,max_length=512,{more}"
                f, k = compare(lm_eval(folder, "api-" + batch + more[-5:], "local-completions", args, batch), theirs)
                failed, n = failed + f, n + k
    print(f"{n - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
