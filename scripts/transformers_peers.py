#!/usr/bin/env python3
"""Holds model directories against Hugging Face's transformers, both ways: the same ids, logits, and greedy tokens.

    scripts/transformers_peers.py           ours opened there, and theirs opened here
    scripts/transformers_peers.py ours      every preset and kind of tokenizer, trained for a few steps and opened there
    scripts/transformers_peers.py theirs    small random models as the classes save them, opened here

Needs torch, transformers 5 and safetensors, and target/release/handgrad (HANDGRAD names another one).
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen3Config
from transformers import LlamaForCausalLM, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar
from trace_transformers import trace

disable_progress_bar()
ROOT = Path(__file__).resolve().parent.parent
HANDGRAD = os.environ.get("HANDGRAD", str(ROOT / "target/release/handgrad"))
TEXT = "The quick brown fox, 1,234 times: it's naïve, don't you think?\n\n  Two  blanks.\tA tab; 你好 😀 e\u0301\n"
END = "<|endoftext|>"
IDS = [5, 9, 2, 7, 11, 3, 20, 8]
failures = 0


def handgrad(*args, check=True):
    result = subprocess.run([HANDGRAD, *map(str, args)], capture_output=True, check=False)
    if check and result.returncode:
        raise SystemExit(f"handgrad {args}: {result.stderr.decode()}")
    return result


def report(name, problems):
    global failures
    failures += bool(problems)
    print(f"{'FAIL' if problems else 'ok  '} {name}{': ' if problems else ''}{'; '.join(problems)}", flush=True)


def same_logits(directory, dtype="f32"):
    """handgrad's logits of IDS against those of the class, both in f32; the largest difference over the largest logit."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "trace.safetensors"
        handgrad("trace", "--model", directory, "--ids", ",".join(map(str, IDS)), "--out", out)
        ours = load_file(out)["logits"]
    theirs = trace(directory, [IDS])["logits"]
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    return [] if error <= 1e-5 else [f"logits differ by {error:.1e} of the largest"]


def greedy(directory, prompt, tokenizer, count=20):
    """Greedy continuations as texts."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = tokenizer.encode(prompt)
    count = min(count, model.config.max_position_embeddings - len(ids))
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=count)[0].tolist()
    while out and out[-1] in stop_ids(model):
        out.pop()
    theirs = tokenizer.decode(out, skip_special_tokens=False)
    args = ["--prompt", prompt, "--temperature", "0", "--max-new", count]
    ours = handgrad("generate", "--model", directory, *args, "--quiet").stdout.decode()[:-1]
    return [] if ours == theirs else [f"greedy tokens: {ours!r}, there {theirs!r}"]


def stop_ids(model):
    ids = model.generation_config.eos_token_id
    return [] if ids is None else ids if isinstance(ids, list) else [ids]


def same_ids(directory, text):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    encode = subprocess.run(
        [HANDGRAD, "tokenizer", "encode", "--tokenizer", f"{directory}/tokenizer.json"], input=text.encode(), capture_output=True, check=True
    )
    ours = [int(n) for n in encode.stdout.split()]
    theirs = tokenizer.encode(text)
    problems = [] if ours == theirs else [f"ids: {ours}, there {theirs} by {type(tokenizer).__name__}"]
    decoded = tokenizer.decode(theirs)
    if decoded != text:
        problems.append(f"decoded there: {decoded!r}")
    return problems, tokenizer


def ours():
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        texts = scratch / "texts"
        texts.mkdir()
        for i in range(3):
            (texts / f"{i}.txt").write_text(TEXT * 30)
        tokenizers = ["char", "bytes"]
        for pattern in ["gpt2", "qwen2", "llama3"]:
            out = scratch / f"{pattern}.json"
            train = ["--vocab-size", 300, "--pattern", pattern, "--special", END, "--quiet", "--out", out]
            handgrad("tokenizer", "train", *train, texts / "0.txt")
            tokenizers.append(out)
        presets = {"chapter8": [], "classic": [], "report-80m": ["--seq-len", 16]}
        for (preset, more), tokenizer in itertools.product(presets.items(), tokenizers):
            if preset == "report-80m" and tokenizer != tokenizers[-1]:
                continue  # a large model; the small ones have shown every tokenizer
            out = scratch / f"{preset}-{Path(tokenizer).stem}"
            common = ["--data", texts, "--tokenizer", tokenizer, "--steps", 3, "--batch-size", 2, "--quiet", "--out", out]
            handgrad("train", "--preset", preset, *common, *more)
            problems, opened = same_ids(out, TEXT)
            if preset == "classic":
                try:
                    AutoModelForCausalLM.from_pretrained(out)
                    problems.append("transformers opened what it does not know")
                except ValueError as error:
                    if "handgrad_classic" not in str(error):
                        problems.append(f"the error there: {error}")
            else:
                problems += same_logits(out) + greedy(out, "The quick", opened)
            if opened.eos_token != END:
                problems.append(f"eos_token there: {opened.eos_token!r}")
            report(f"ours: {out.name}", problems)


def theirs():
    small = dict(vocab_size=260, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=64)
    small.update(initializer_range=0.3, eos_token_id=[256, 257], bos_token_id=None, pad_token_id=None)
    heads = dict(num_attention_heads=8, num_key_value_heads=2)
    llama3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    llama3["original_max_position_embeddings"] = 16
    linear = dict(rope_type="linear", rope_theta=1e4, factor=4.0)
    models = {
        "llama": (LlamaForCausalLM, LlamaConfig(**small, **heads)),
        "llama, llama3": (LlamaForCausalLM, LlamaConfig(**small, **heads, rope_parameters=llama3)),
        "llama, linear": (LlamaForCausalLM, LlamaConfig(**small, **heads, rope_parameters=linear)),
        "llama, one kv head": (LlamaForCausalLM, LlamaConfig(**small, num_attention_heads=4, num_key_value_heads=1)),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**small, **heads, head_dim=4)),
        "qwen3, head_dim 16": (Qwen3ForCausalLM, Qwen3Config(**small, **heads, head_dim=16)),
        "qwen3, theta 1e6": (Qwen3ForCausalLM, Qwen3Config(**small, **heads, head_dim=8, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    }
    for (name, (kind, config)), tied, dtype, sharded in itertools.product(
        models.items(), [False, True], [torch.float32, torch.bfloat16], [False, True]
    ):
        with tempfile.TemporaryDirectory() as directory:
            torch.manual_seed(1)
            config.tie_word_embeddings = tied
            model = kind(config)
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    torch.nn.init.normal_(parameter, 1.0, 0.2)
            model.to(dtype).save_pretrained(directory, max_shard_size="20KB" if sharded else "5GB")
            index = Path(directory) / "model.safetensors.index.json"
            byte_tokenizer(directory)
            tokenizer = AutoTokenizer.from_pretrained(directory)
            problems = same_logits(directory) + greedy(directory, "ab c", tokenizer)
            problems += same_top_p(directory)
            if index.exists() != sharded:
                problems.append("not saved as it was meant")
            what = f"{name}{', tied' if tied else ''}{', bf16' if dtype == torch.bfloat16 else ''}{', sharded' if sharded else ''}"
            report(f"theirs: {what}", problems)


def byte_tokenizer(directory):
    """Bytes as 256 ids, four special tokens behind them."""
    corpus = Path(directory) / "corpus.txt"
    corpus.write_text("a")
    names = [END, "<|im_end|>", "<a>", "<b>"]
    special = [part for name in names for part in ("--special", name)]
    out = Path(directory) / "tokenizer.json"
    handgrad("tokenizer", "train", "--vocab-size", 260, "--pattern", "gpt2", *special, "--quiet", "--out", out, corpus)
    (Path(directory) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def same_top_p(directory, p=0.6, draws=300):
    """The first tokens that sampling takes are those of the smallest set that reaches `p`."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    logits = model(torch.tensor([tokenizer.encode("ab c")])).logits[0, -1]
    probabilities, order = logits.softmax(-1).sort(descending=True)
    size = int((probabilities.cumsum(-1) < p).sum()) + 1
    allowed = {tokenizer.decode([i]) for i in order[:size].tolist() if i not in stop_ids(model)} | {""}
    with tempfile.TemporaryDirectory() as scratch:
        prompts = Path(scratch) / "prompts"
        prompts.write_text("ab c\n" * draws)
        args = ["--prompt-file", prompts, "--batch", "--max-new", 1, "--temperature", 1, "--top-p", p, "--quiet"]
        out = handgrad("generate", "--model", directory, *args).stdout.decode(errors="replace")
    drawn = {line[len("ab c") :] for line in out[:-1].split("\n\n")}
    other = {text for text in drawn if text not in allowed and "\ufffd" not in text and "\n" not in text}
    return [f"drawn with --top-p {p} from {size} tokens: {sorted(other)}"] if other else []


if __name__ == "__main__":
    parts = {"ours": ours, "theirs": theirs}
    for part in sys.argv[1:] or parts:
        if part not in parts:
            raise SystemExit(f"transformers_peers.py: found '{part}', expected ours or theirs")
        parts[part]()
    print(f"{failures} differences" if failures else "no difference")
    sys.exit(failures > 0)
