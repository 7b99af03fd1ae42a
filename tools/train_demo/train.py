#!/usr/bin/env python3
"""Train models/rose-tiny: a small GPT-2 on public-domain children's books, minutes on one GPU.

    python3 train.py --data children_pd.txt --tokenizer tokenizer --out run --steps 10000

Every book, and every chapter or story in it, is one document; <|endoftext|> stands before each. An
epoch cuts the stream of all documents into windows of --context tokens from a random offset and
visits them in random order. The weights with the lowest held-out loss are kept, rounded to BF16 (as
they ship), in OUT/weights.pt; OUT/train.json tells how they came about.

With --seconds the number of steps is chosen from the measured speed; then the result depends on the
machine. With --steps and one seed, two runs differ only by the GPU's order of summation.
"""

import argparse
import json
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer

import corpus


class Block(nn.Module):
    def __init__(self, d, n_heads, d_ff, dropout):
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, d_ff), nn.Linear(d_ff, d)

    def forward(self, x):
        b, t, d = x.shape
        p = self.dropout if self.training else 0.0
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=p)
        x = x + F.dropout(self.proj(a.transpose(1, 2).reshape(b, t, d)), p, self.training)
        h = F.gelu(self.fc(self.ln_2(x)), approximate="tanh")
        return x + F.dropout(self.out(h), p, self.training)


class GPT2(nn.Module):
    def __init__(self, shape, dropout):
        super().__init__()
        d = shape["d_model"]
        self.dropout = dropout
        self.wte = nn.Embedding(shape["vocab_size"], d)
        self.wpe = nn.Embedding(shape["context"], d)
        self.blocks = nn.ModuleList(
            Block(d, shape["n_heads"], shape["d_ff"], dropout) for _ in range(shape["n_layers"])
        )
        self.ln_f = nn.LayerNorm(d)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(p, 0.0, 0.02 / (math.sqrt(2 * shape["n_layers"]) if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        """Mean negative log-likelihood of targets [b][t] given ids [b][t]."""
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is the token embedding
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def encode(tokenizer, documents):
    """One stream: <|endoftext|> document <|endoftext|> document ... <|endoftext|>."""
    eot = tokenizer.token_to_id(corpus.EOT)
    ids = [eot]
    for e in tokenizer.encode_batch(documents):
        ids += e.ids
        ids.append(eot)
    return torch.tensor(ids, dtype=torch.int64)


def batches(stream, context, batch, generator):
    """Endless (ids, targets) of shape [batch][context], on the device of the stream."""
    span = torch.arange(context + 1, device=stream.device)
    while True:
        first = int(torch.randint(context, (1,), generator=generator))
        starts = torch.arange(first, len(stream) - context - 1, context)
        starts = starts[torch.randperm(len(starts), generator=generator)].to(stream.device)
        for i in range(0, len(starts) - batch + 1, batch):
            window = stream[starts[i : i + batch, None] + span]
            yield window[:, :-1], window[:, 1:]


@torch.no_grad()
def held_out_loss(model, stream, context, autocast):
    """Nats a token over windows of context tokens that follow each other without overlap."""
    model.eval()
    total, count, rows = 0.0, 0, 32
    for i in range(0, len(stream) - 1, rows * context):
        piece = stream[i : i + rows * context + 1]
        full = (len(piece) - 1) // context * context
        parts = [piece[: full + 1]] if full else []
        if len(piece) - 1 > full:
            parts.append(piece[full:])  # the short rest, one row
        for p in parts:
            width = min(context, len(p) - 1)
            with autocast():
                loss = model(p[:-1].view(-1, width), p[1:].view(-1, width))
            total += loss.item() * (len(p) - 1)
            count += len(p) - 1
    model.train()
    return total / count


def rounded(model):
    return {k: v.detach().to(torch.bfloat16).cpu().clone() for k, v in model.state_dict().items()}


def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--data", required=True, help="the corpus, UTF-8 text")
    ap.add_argument("--tokenizer", required=True, help="folder with tokenizer.json")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--steps", type=int, default=0, help="optimizer steps")
    ap.add_argument("--seconds", type=float, default=0, help="choose --steps from this time")
    ap.add_argument("--n-layers", type=int, default=5)
    ap.add_argument("--d-model", type=int, default=256)
    ap.add_argument("--n-heads", type=int, default=4)
    ap.add_argument("--d-ff", type=int, default=1024)
    ap.add_argument("--context", type=int, default=512)
    ap.add_argument("--batch", type=int, default=32, help="windows a step (default 32)")
    ap.add_argument("--lr", type=float, default=2e-3, help="peak learning rate (default 2e-3)")
    ap.add_argument("--warmup", type=int, default=200, help="steps of warm-up (default 200)")
    ap.add_argument("--weight-decay", type=float, default=0.1)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--eval-every", type=int, default=250, help="steps (default 250)")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = ap.parse_args()
    if (args.steps > 0) == (args.seconds > 0):
        ap.error("give --steps or --seconds")
    return args


def main():
    args = parse()
    t_start = time.monotonic()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)

    tokenizer = Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json"))
    books, digest = corpus.read_books(args.data)
    train_docs, held_docs = corpus.split(books)
    train, held = (encode(tokenizer, d).to(device) for d in (train_docs, held_docs))
    shape = {
        "n_layers": args.n_layers,
        "d_model": args.d_model,
        "n_heads": args.n_heads,
        "d_ff": args.d_ff,
        "context": args.context,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    model = GPT2(shape, args.dropout).to(device)
    n_params = sum(p.numel() for p in model.parameters())
    tokens_per_step = args.batch * args.context
    print(f"{n_params} parameters; {len(train)} training and {len(held)} held-out tokens")
    print(f"ready after {time.monotonic() - t_start:.1f} s", flush=True)

    decay = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": args.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        eps=1e-8,
        fused=device.type == "cuda",
    )

    def autocast():
        return torch.autocast(device.type, dtype=torch.bfloat16)

    source = batches(train, args.context, args.batch, torch.Generator().manual_seed(args.seed))
    steps, best, best_step, log = args.steps, (float("inf"), None), 0, []
    probe_begin, probe_end, t_train = 20, 120, time.monotonic()
    if steps == 0 and device.type == "cpu":
        probe_begin, probe_end = 1, 3
    step = 0
    while steps == 0 or step < steps:
        if args.seconds and steps == 0 and step == probe_begin:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t_probe = time.monotonic()
        if args.seconds and steps == 0 and step == probe_end:
            if device.type == "cuda":
                torch.cuda.synchronize()
            rate = (probe_end - probe_begin) / (time.monotonic() - t_probe)
            left = args.seconds - (time.monotonic() - t_train)
            steps = step + max(1, int(left * rate * 0.97))  # 3 % for the evaluations
            print(f"{rate:.1f} steps/s: {steps} steps", flush=True)
        progress = 0.0 if steps == 0 else max(0.0, (step - args.warmup) / max(1, steps - args.warmup))
        lr = args.lr * min(1.0, (step + 1) / args.warmup)
        lr *= 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = lr
        ids, targets = next(source)
        with autocast():
            loss = model(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % args.eval_every == 0 or step == steps:
            held_loss = held_out_loss(model, held, args.context, autocast)
            log.append([step, round(loss.item(), 4), round(held_loss, 4)])
            if held_loss < best[0]:
                best, best_step = (held_loss, rounded(model)), step
            epoch = step * tokens_per_step / len(train)
            print(
                f"step {step} epoch {epoch:.1f} lr {lr:.2e} train {loss.item():.4f} "
                f"held-out {held_loss:.4f} {time.monotonic() - t_train:.0f} s",
                flush=True,
            )

    seconds = time.monotonic() - t_train
    model.load_state_dict({k: v.float() for k, v in best[1].items()})
    final = held_out_loss(model, held, args.context, lambda: torch.autocast(device.type, enabled=False))
    n_bytes = sum(len(d.encode()) for d in held_docs)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"best at step {best_step}: held-out {final:.4f} nats a token after rounding to BF16")
    os.makedirs(args.out, exist_ok=True)
    torch.save(best[1], os.path.join(args.out, "weights.pt"))
    record = {
        "arguments": {k: v for k, v in vars(args).items() if k not in ("data", "tokenizer", "out")},
        "shape": shape,
        "parameters": n_params,
        "corpus_sha256": digest,
        "train_tokens": len(train),
        "held_out_tokens": len(held),
        "held_out_bytes": n_bytes,
        "steps": steps,
        "tokens_per_step": tokens_per_step,
        "epochs": round(steps * tokens_per_step / len(train), 2),
        "best_step": best_step,
        "held_out_loss": round(final, 5),
        "held_out_bits_per_byte": round(final * (len(held) - 1) / n_bytes / math.log(2), 4),
        "seconds": round(seconds, 1),
        "device": name,
        "torch": torch.__version__,
        "log": log,
    }
    with open(os.path.join(args.out, "train.json"), "w", encoding="utf-8") as f:
        json.dump(record, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
