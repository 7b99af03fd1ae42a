#!/usr/bin/env python3
"""Train the byte-level BPE vocabulary of models/rose-tiny on the training part of the corpus.

    python3 train_tokenizer.py --data children_pd.txt --out tokenizer

Writes tokenizer.json, vocab.json, merges.txt, tokenizer_config.json and special_tokens_map.json.
"""

import argparse
import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("--data", required=True, help="the corpus, UTF-8 text")
    ap.add_argument("--out", required=True, help="folder to write")
    ap.add_argument("--vocab-size", type=int, default=4096)
    ap.add_argument("--context", type=int, default=512, help="model_max_length (default 512)")
    args = ap.parse_args()

    books, digest = corpus.read_books(args.data)
    train, _ = corpus.split(books)

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=args.vocab_size,
        min_frequency=2,
        special_tokens=[corpus.EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(train, trainer)

    os.makedirs(args.out, exist_ok=True)
    tok.save(os.path.join(args.out, "tokenizer.json"), pretty=False)
    tok.model.save(args.out)  # vocab.json, merges.txt

    def write(name, value):
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2)
            f.write("\n")

    special = {k: corpus.EOT for k in ("bos_token", "eos_token", "unk_token")}
    write("special_tokens_map.json", special)
    write(
        "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": args.context,
            "tokenizer_class": "GPT2Tokenizer",
            **special,
        },
    )
    n_chars = sum(map(len, train))
    n_tokens = sum(len(e.ids) for e in tok.encode_batch(train))
    print(f"corpus sha256 {digest}")
    print(f"vocabulary {tok.get_vocab_size()}, <|endoftext|> = {tok.token_to_id(corpus.EOT)}")
    print(f"training part: {n_chars} characters, {n_tokens} tokens, {n_chars / n_tokens:.2f} a token")


if __name__ == "__main__":
    main()
