#!/usr/bin/env python3
"""Holds handgrad's byte pairs against Hugging Face's tokenizers and tiktoken: the same ids, and who is how fast.

    scripts/tokenizer_peers.py TEXT...              ids, encoding speed and training speed and memory on these files
    scripts/tokenizer_peers.py --no-speed TEXT...   ids only
    scripts/tokenizer_peers.py --files [TEXT...]    ids of tokenizer.json as tokenizers and transformers write it, in all forms
    scripts/tokenizer_peers.py --repeat TEXT        training memory on a text and on the text ten times
    scripts/tokenizer_peers.py --golden             writes tests/golden/tokenizer

Needs the Python packages tokenizers and tiktoken, for --files transformers too, for the training speeds rustbpe too, and target/release/handgrad (HANDGRAD names
another one). Each training runs in a process of its own, whose peak memory is what the system says.
"""

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HANDGRAD = os.environ.get("HANDGRAD", str(ROOT / "target/release/handgrad"))
END = "<|endoftext|>"
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def handgrad(*args, **kwargs):
    return subprocess.run([HANDGRAD, *map(str, args)], check=True, stdout=subprocess.PIPE, **kwargs).stdout


def train(out, pattern, vocab_size, files, specials=(END,)):
    args = ["--vocab-size", vocab_size, "--pattern", pattern, "--out", out, "--quiet"]
    handgrad("tokenizer", "train", *args, *(f"--special={text}" for text in specials), *files)


def encode(tokenizer, path, special="allow"):
    return list(map(int, handgrad("tokenizer", "encode", "--quiet", "--tokenizer", tokenizer, "--special-tokens", special, path).split()))


def tiktoken_of(tokenizer, pattern, ranks):
    import tiktoken

    handgrad("tokenizer", "export", "--tokenizer", tokenizer, "--out", ranks, "--quiet")
    # Read here: tiktoken's own loader keeps a copy for each path, and would give an old one.
    lines = (line.split() for line in Path(ranks).read_text().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("handgrad", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={END: 256})


def must_equal(name, found, expected):
    if found == expected:
        return
    at = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), min(len(found), len(expected)))
    sys.exit(f"{name}: found {len(found)} ids, expected {len(expected)}; token {at}: {found[at:at + 5]}, expected {expected[at:at + 5]}")


def compare(path, tokenizer, pattern, dir):
    """Ids of both libraries on one file, special tokens recognised and not."""
    from tokenizers import Tokenizer

    text = Path(path).read_bytes().decode()
    ours, ordinary = encode(tokenizer, path), encode(tokenizer, path, "text")
    theirs = tiktoken_of(tokenizer, pattern, dir / "ranks.tiktoken")
    must_equal(f"{path} {pattern} tiktoken encode_ordinary", ordinary, theirs.encode_ordinary(text))
    must_equal(f"{path} {pattern} tiktoken encode", ours, theirs.encode(text, allowed_special="all"))
    must_equal(f"{path} {pattern} tokenizers", ours, Tokenizer.from_file(str(tokenizer)).encode(text).ids)
    print(f"{path}: {pattern}: {len(ours)} ids of {len(text.encode())} bytes equal tokenizers' and tiktoken's", flush=True)


# A text that all forms below are compared on, with the added tokens in every neighbourhood.
ADDED = ["<m>", "th", "café", "<|x|> y", "!", "Ab"]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized"]
REGEXES = [r"\s", r"\d+", r"[\r\n]", r"\p{Lu}?\p{Ll}+", r" ?\w+|[^\w\s]+", r"a*"]
BEHAVIORS = ["isolated", "merged_with_previous", "merged_with_next", "contiguous"]
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"


def saved_by_transformers(learned, ranks):
    """GPT-2's, Qwen2's and Llama 3's classes with a vocabulary of ours, and the file that each saves."""
    from tokenizers import AddedToken
    from transformers import GPT2TokenizerFast, Qwen2TokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    model = {name: json.loads(Path(path).read_text())["model"] for name, path in learned.items()}
    merges = {name: [tuple(merge.split(" ")) for merge in model["merges"]] for name, model in model.items()}
    gpt2 = GPT2TokenizerFast(vocab=model["gpt2"]["vocab"], merges=merges["gpt2"])
    yield "GPT2TokenizerFast", gpt2
    gpt2.add_special_tokens({"pad_token": "!"})
    gpt2.add_tokens([AddedToken("café", normalized=True, lstrip=True), "th"])
    yield "GPT2TokenizerFast with added tokens", gpt2
    qwen = Qwen2TokenizerFast(vocab=model["qwen2"]["vocab"], merges=merges["qwen2"])
    qwen.add_tokens([AddedToken(text, normalized=False, special=False) for text in ("<think>", "</think>")])
    yield "Qwen2TokenizerFast", qwen
    converter = TikTokenConverter(vocab_file=str(ranks), pattern=PATTERNS["llama3"], extra_special_tokens=["<|begin_of_text|>", "<|end_of_text|>"])
    llama = converter.converted()
    yield "Llama 3's converter", llama
    llama.enable_padding(pad_id=0, pad_token="!")
    llama.enable_truncation(max_length=1 << 30)
    yield "Llama 3's converter, with padding and truncation", llama


def forms(learned):
    """Tokenizers of the library with every step that handgrad computes, one after the other."""
    from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

    def fresh(*steps, normalizer=None):
        tokenizer = Tokenizer.from_file(str(learned["gpt2"]))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_level])
        if normalizer:
            tokenizer.normalizer = normalizer
        return tokenizer

    split = lambda regex, behavior, invert=False: pre_tokenizers.Split(Regex(regex), behavior, invert)
    for regex in REGEXES:
        for behavior in BEHAVIORS:
            for invert in [False, True]:
                yield f"Split {regex} {behavior} {invert}", fresh(split(regex, behavior, invert))
    yield "Split by a string", fresh(pre_tokenizers.Split(". ", "merged_with_previous"))
    for name, regex in [*PATTERNS.items(), ("cl100k", CL100K)]:
        yield f"Split {name}, the gaps removed", fresh(split(regex, "removed", True))
    digits = [split(r"[\r\n]", "isolated"), split(r"\s?\p{L}+", "isolated"), split(r"\s+$", "isolated"), pre_tokenizers.Digits(True)]
    yield "a Sequence of four", fresh(*digits)
    for behavior in BEHAVIORS:
        yield f"Punctuation {behavior}", fresh(pre_tokenizers.Punctuation(behavior), pre_tokenizers.Digits(False))
    both = fresh()
    both.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    yield "Digits and GPT-2's pattern", both
    for chosen in range(1 << len(FLAGS)):
        flags = {flag: bool(chosen >> i & 1) for i, flag in enumerate(FLAGS)}
        for special in [False, True]:
            tokenizer = fresh(normalizer=normalizers.Sequence([normalizers.NFC()]))
            tokens = [AddedToken(text, **flags) for text in ADDED]
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(tokens)
            yield f"added tokens, special {special}, {flags}", tokenizer


def mixed_text(text, most=None):
    draw = random.Random(7)
    around = ["", " ", "  ", "\n", "a", "_", "é", "e\u0301", ".", "9"]
    words = [word + draw.choice(["", " "]) for word in text[:6000].split(" ")] + ADDED * 40 + ["cafe\u0301", END, "<think>", "</think>"] * 20
    draw.shuffle(words)
    return "".join(word + draw.choice(around) for word in words[:most])


def both_ways(tokenizer, text):
    """The ids with special tokens recognised, and taken for text."""
    ids = {}
    for special in ["allow", "text"]:
        tokenizer.encode_special_tokens = special == "text"
        ids[special] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def compare_files(paths, dir):
    """tokenizer.json in all forms: ids with special tokens recognised and not, and what the ids are as text."""
    from tokenizers import Tokenizer

    golden = ROOT / "tests/golden/tokenizer/text.txt"
    learned, count = {name: dir / f"{name}.json" for name in PATTERNS}, 0
    for pattern, path in learned.items():
        train(path, pattern, 600, [golden])
    # Ranks without a gap, as Llama 3's are: special tokens follow.
    train(dir / "plain.json", "llama3", 600, [golden], [])
    handgrad("tokenizer", "export", "--tokenizer", dir / "plain.json", "--out", dir / "ranks", "--quiet")
    texts = [mixed_text(Path(path).read_bytes().decode()) for path in paths or [golden]]
    for name, tokenizer in [*saved_by_transformers(learned, dir / "ranks"), *forms(learned)]:
        out = dir / "saved"
        out.mkdir(exist_ok=True)
        if isinstance(tokenizer, Tokenizer):
            tokenizer.save(str(out / "tokenizer.json"))
        else:
            tokenizer.save_pretrained(out)
        theirs = Tokenizer.from_file(str(out / "tokenizer.json"))
        theirs.no_truncation(), theirs.no_padding()
        for text in texts:
            (dir / "text").write_bytes(text.encode())
            for special, expected in both_ways(theirs, text).items():
                must_equal(f"{name}, special tokens: {special}", encode(out / "tokenizer.json", dir / "text", special), expected)
                count += 1
    print(f"{count} encodings of tokenizer.json in {count // len(texts) // 2} forms equal tokenizers'")


def encoding_speed(path, tokenizer, dir):
    """MB/s of the peers on one thread; `cargo bench --bench tokenizer` says ours on the same text in one process."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    text = Path(path).read_bytes().decode()
    size = len(text.encode()) / 1e6
    tiktoken = tiktoken_of(tokenizer, "gpt2", dir / "ranks.tiktoken")
    hugging = Tokenizer.from_file(str(tokenizer))
    for name, call in [("tiktoken encode_ordinary", tiktoken.encode_ordinary), ("tokenizers encode", hugging.encode)]:
        best = min(timed(lambda: call(text)) for _ in range(3))
        print(f"{name}: {size / best:.1f} MB/s of processor time", flush=True)
    bench = ["cargo", "bench", "--bench", "tokenizer", "--", "--once", str(path), str(tokenizer)]
    subprocess.run(bench, cwd=ROOT, check=True)


def timed(call):
    """Processor seconds of this thread: what other programs do meanwhile counts little."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measured(name, command):
    """Wall seconds, processor seconds and peak memory of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"{name}: exit status {process.returncode}")
    cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    print(f"{name}: {wall:.2f} s, {cpu:.2f} s of processor time, {memory:.0f} MiB at most", flush=True)
    return wall, cpu, memory


PEER_TRAINERS = {
    "rustbpe": """
import rustbpe, sys
def stretches(path):
    with open(path, encoding="utf-8", newline="") as file:
        while text := file.read(1 << 20):
            yield text
tokenizer = rustbpe.Tokenizer()
tokenizer.train_from_iterator(stretches(sys.argv[2]), vocab_size=int(sys.argv[1]), pattern=sys.argv[3])
""",
    "tokenizers": """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
def stretches(path):
    with open(path, encoding="utf-8", newline="") as file:
        while text := file.read(1 << 20):
            yield text
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=int(sys.argv[1]), special_tokens=[], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator(stretches(sys.argv[2]), trainer=trainer)
""",
}


def training_speed(path, dir):
    os.environ["RAYON_NUM_THREADS"] = "2"
    ours = [HANDGRAD, "--threads", "2", "tokenizer", "train", "--vocab-size", "32768", "--quiet", "--out", str(dir / "t.json"), str(path)]
    measured("handgrad, 32768 tokens", ours)
    for name, source in PEER_TRAINERS.items():
        measured(f"{name}, 32768 tokens", [sys.executable, "-c", source, "32768", str(path), PATTERNS["gpt2"]])


def repeat(path, dir):
    """The distinct words are the same, the text is ten times as long: so should the memory be the same."""
    longer = dir / "longer.txt"
    text = Path(path).read_bytes() + b"\n"
    with open(longer, "wb") as file:
        for _ in range(10):
            file.write(text)
    for name, file in [("once", path), ("ten times", longer)]:
        command = [HANDGRAD, "--threads", "2", "tokenizer", "train", "--vocab-size", "32768", "--quiet", "--out", str(dir / "t.json"), str(file)]
        measured(f"{name}, {Path(file).stat().st_size / 1e6:.0f} MB", command)


def golden():
    """Small tokenizers of all three patterns, a text of many scripts, and the libraries' ids for it; and the library's ids of a
    short text in all forms of the file."""
    from tokenizers import Tokenizer

    out = ROOT / "tests/golden/tokenizer"
    out.mkdir(parents=True, exist_ok=True)
    words = "The quick brown fox doesn't jump; we'LL see: naïve Œuvre, ÇA VA? 12345 3.14 ²½Ⅷ٣ Привет мир 中文字符 日本語です 한국어 שלום हिन्दी 👩‍👩‍👧 😀"
    words = words.split() + ["\n", "\r\n", "\r", "\n\n\n", "  ", "   ", "\t", "\u00a0", "\u3000", "\u2028", "\0", END, "e\u0301", "def f(x):\n    return x\n", "'s", "'S", "(\"'", "->"]
    draw = random.Random(5)
    text = "".join(draw.choice(words) + draw.choice(["", " ", " ", " "]) for _ in range(1200))
    (out / "text.txt").write_bytes(text.encode())
    ids = {}
    for pattern in PATTERNS:
        tokenizer = out / f"{pattern}.json"
        train(tokenizer, pattern, 600, [out / "text.txt"])
        ids[pattern] = Tokenizer.from_file(str(tokenizer)).encode(text).ids
        peer = tiktoken_of(tokenizer, pattern, out / f"{pattern}.tiktoken")
        must_equal(f"tiktoken {pattern}", peer.encode(text, allowed_special="all"), ids[pattern])
        if pattern != "gpt2":
            (out / f"{pattern}.tiktoken").unlink()
    (out / "ids.json").write_text(json.dumps(ids, separators=(",", ":")) + "\n")
    short, written = mixed_text(text[:400], 40), []
    for name, tokenizer in forms({"gpt2": out / "gpt2.json"}):
        form = json.loads(tokenizer.to_str())
        steps = {key: form[key] for key in ["normalizer", "pre_tokenizer", "added_tokens"]}
        written.append({"name": name, **steps, **both_ways(tokenizer, short)})
    lines = ",\n".join(json.dumps(form, ensure_ascii=False, separators=(",", ":")) for form in written)
    (out / "forms.json").write_text(f'{{"text":{json.dumps(short, ensure_ascii=False)},\n"forms":[\n{lines}\n]}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT")
    parser.add_argument("--golden", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--repeat", action="store_true")
    parser.add_argument("--no-speed", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as dir:
        dir = Path(dir)
        if args.golden:
            return golden()
        if args.files:
            return compare_files(args.texts, dir)
        if not args.texts:
            parser.error("expected a text, --files or --golden")
        if args.repeat:
            return repeat(args.texts[0], dir)
        for pattern in PATTERNS:
            tokenizer = dir / f"{pattern}.json"
            train(tokenizer, pattern, 32768, args.texts)
            for path in args.texts:
                compare(path, tokenizer, pattern, dir)
        if not args.no_speed:
            encoding_speed(args.texts[0], dir / "gpt2.json", dir)
            training_speed(args.texts[0], dir)


if __name__ == "__main__":
    main()
