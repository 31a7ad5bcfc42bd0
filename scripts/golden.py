#!/usr/bin/env python3
"""The model once more, in PyTorch, and the golden values that the Rust tests compare with.

    python scripts/golden.py                        # writes tests/golden/{chapter8,report,classic}
    python scripts/golden.py --check-transformers   # writes nothing: compares those files with Hugging Face's models

Needs torch, numpy and safetensors; the check needs transformers too. Every directory is a Hugging Face model directory
(`config.json`, `model.safetensors`) with a `golden.safetensors` beside it, whose names `golden_values` lists.

Letters of shapes, as in src/lib.rs: B sequences, T positions, H heads, D head width, V vocabulary. In memory RoPE turns
the neighbouring channels (2i, 2i+1), as both documents write it; files hold Hugging Face's order, where the partners
are (i, i + D/2). `file_layout` is the one place that converts.
"""

import argparse
import copy
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
IGNORED = -100
OPTIMIZER = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


# ---- The model -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    """The same switches as src/nn/config.rs."""

    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    head_dim: int
    n_ff: int
    norm_eps: float
    max_seq_len: int = 24
    rope_theta: float = 10000.0
    norm_position: str = "pre"  # or "post"
    norm: str = "rms_norm"  # or "layer_norm"
    feed_forward: str = "swiglu"  # or "gelu"
    positions: str = "rope"  # or "absolute"
    qk_norm: bool = False
    tie_embeddings: bool = False
    bias: bool = False


class RmsNorm(nn.Module):
    """x / sqrt(mean(x²) + ε) · gain, over the last dimension."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def make_norm(c: Config) -> nn.Module:
    return RmsNorm(c.n_embd, c.norm_eps) if c.norm == "rms_norm" else nn.LayerNorm(c.n_embd, c.norm_eps)


def rope(x: Tensor, theta: float) -> Tensor:
    """x [B,T,H,D]: channels (2i, 2i+1) are one complex number; position t turns it by the angle t·θ^(−2i/D)."""
    _, length, _, width = x.shape
    frequency = theta ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = torch.outer(torch.arange(length, dtype=x.dtype), frequency)[:, None, :]  # [T,1,D/2]
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # [B,T,H,D/2]
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


class Attention(nn.Module):
    """Causal attention in which query head i reads KV head ⌊i/g⌋, with g = n_head / n_kv_head."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.n_embd, c.n_head * c.head_dim, c.bias)
        # Without RoPE a bias of the keys adds the same number to every score of a query, which softmax does not see.
        self.k_proj = nn.Linear(c.n_embd, c.n_kv_head * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.n_embd, c.n_kv_head * c.head_dim, c.bias)
        self.o_proj = nn.Linear(c.n_head * c.head_dim, c.n_embd, c.bias)
        if c.qk_norm:  # one gain per channel, shared by the heads
            self.q_norm = RmsNorm(c.head_dim, c.norm_eps)
            self.k_norm = RmsNorm(c.head_dim, c.norm_eps)

    def forward(self, x: Tensor, note) -> Tensor:
        c = self.c
        q, k, v = (proj(x).unflatten(-1, (-1, c.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if c.qk_norm:  # before the rotation
            q, k = self.q_norm(q), self.k_norm(k)
        if c.positions == "rope":
            q, k = rope(q, c.rope_theta), rope(k, c.rope_theta)
        note("q", q), note("k", k), note("v", v)

        q = q.unflatten(2, (c.n_kv_head, -1))  # [B,T,n_kv_head,g,D]
        score = torch.einsum("bqngd,bknd->bngqk", q, k) / math.sqrt(c.head_dim)
        future = torch.ones(score.shape[-2:], dtype=torch.bool).triu(1)
        weight = score.masked_fill(future, -math.inf).softmax(-1)
        mixed = torch.einsum("bngqk,bknd->bqngd", weight, v)
        return self.o_proj(mixed.flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) ⊙ up(x)). GELU, in GPT-2's tanh form: down(gelu(up(x)))."""

    def __init__(self, c: Config):
        super().__init__()
        self.gated = c.feed_forward == "swiglu"
        if self.gated:
            self.gate_proj = nn.Linear(c.n_embd, c.n_ff, c.bias)
        self.up_proj = nn.Linear(c.n_embd, c.n_ff, c.bias)
        self.down_proj = nn.Linear(c.n_ff, c.n_embd, c.bias)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up_proj(x)
        return self.down_proj(F.silu(self.gate_proj(x)) * up if self.gated else F.gelu(up, approximate="tanh"))


class Block(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.pre = c.norm_position == "pre"
        self.input_layernorm = make_norm(c)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = make_norm(c)
        self.mlp = FeedForward(c)

    def forward(self, x: Tensor, note) -> Tensor:
        if self.pre:  # the residual stream itself is never normalised
            note("attn_norm", a := self.input_layernorm(x))
            note("attn", a := self.self_attn(a, note))
            note("h", h := x + a)
            note("ffn_norm", f := self.post_attention_layernorm(h))
            note("ffn", f := self.mlp(f))
            note("out", out := h + f)
        else:  # each sum is normalised; the names follow the norms, so "h" is the sum and "attn_norm" what leaves it
            note("attn", a := self.self_attn(x, note))
            note("h", h := x + a)
            note("attn_norm", h := self.input_layernorm(h))
            note("ffn", f := self.mlp(h))
            note("ffn_norm", out := self.post_attention_layernorm(h + f))
            note("out", out)
        return out


class Stack(nn.Module):
    """Everything but the head; a level of its own because Hugging Face's names start with `model.`."""

    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.embed_positions = nn.Embedding(c.max_seq_len, c.n_embd) if c.positions == "absolute" else None
        self.layers = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.norm = make_norm(c) if c.norm_position == "pre" else None

    def forward(self, ids: Tensor, note) -> Tensor:
        x = self.embed_tokens(ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[: ids.shape[1]]
        note("embed", x)
        for i, layer in enumerate(self.layers):
            x = layer(x, lambda name, value, i=i: note(f"layers.{i}.{name}", value))
        if self.norm is not None:
            note("final_norm", x := self.norm(x))
        return x


class Transformer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.config = c
        self.model = Stack(c)
        self.lm_head = None if c.tie_embeddings else nn.Linear(c.n_embd, c.vocab_size, bias=False)

    def forward(self, ids: Tensor, note=lambda name, value: None) -> Tensor:
        """ids [B,T] → logits [B,T,V]; `note(name, value)` is told every value that a trace file holds."""
        x = self.model(ids, note)
        return self.lm_head(x) if self.lm_head is not None else x @ self.model.embed_tokens.weight.T


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """ids[t] predicts targets[t]: nothing is shifted here. The mean is over the targets that are not ignored."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


# ---- Files -----------------------------------------------------------------------------------------------------------


def file_layout(c: Config, name: str, value: Tensor) -> Tensor:
    """A weight, or its gradient, as the file orders it: of every rotated head first the even channels, then the odd."""
    rotated = name.split(".")[-2] in ("q_proj", "k_proj", "q_norm", "k_norm")
    if c.positions == "rope" and rotated:
        value = value.unflatten(0, (-1, c.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
    return value.detach().clone().contiguous()


def config_json(c: Config) -> dict:
    """Qwen3's keys with QK-Norm, Llama's without; any other mix of switches takes the project's own type."""
    switches = (c.norm_position, c.norm, c.feed_forward, c.positions, c.bias)
    modern = switches == ("pre", "rms_norm", "swiglu", "rope", False)
    kind, architecture = ("qwen3", "Qwen3") if c.qk_norm else ("llama", "Llama")
    if not modern:
        kind, architecture = "handgrad_classic", "HandgradClassic"
    out = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": kind,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_seq_len,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "num_key_value_heads": c.n_kv_head,
        "hidden_size": c.n_embd,
        "head_dim": c.head_dim,
        "intermediate_size": c.n_ff,
        "rope_theta": c.rope_theta,
        "tie_word_embeddings": c.tie_embeddings,
        "torch_dtype": "float32",
    }
    if modern:
        out |= {"rms_norm_eps": c.norm_eps, "hidden_act": "silu", "attention_bias": False}
        return out if c.qk_norm else out | {"mlp_bias": False}
    own = ("norm_eps", "norm_position", "norm", "feed_forward", "qk_norm", "bias")
    return out | {name: getattr(c, name) for name in own} | {"position_embedding": c.positions}


def write_safetensors(path: Path, tensors: dict, metadata: dict) -> None:
    """As the library's `save_file`, whose metadata is in random order; here the same values give the same bytes."""
    data = save(tensors, metadata)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
    assert len(text) == size, f"{path}: the sorted header has {len(text)} bytes, expected {size}"
    path.write_bytes(data[:8] + text + data[8 + size :])


# ---- Golden values ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    config: Config
    seed: int
    clip: float  # lies between the gradient norms of the three steps, so that some are clipped and some are not


CASES = {
    "chapter8": Case(
        Config(vocab_size=37, n_layer=2, n_head=4, n_kv_head=2, n_embd=16, head_dim=8, n_ff=40, norm_eps=1e-6,
               qk_norm=True),
        seed=7,
        clip=5.0,
    ),
    "report": Case(
        Config(vocab_size=41, n_layer=2, n_head=2, n_kv_head=2, n_embd=24, head_dim=12, n_ff=32, norm_eps=1e-5,
               tie_embeddings=True),
        seed=10,
        clip=5.0,
    ),
    "classic": Case(
        Config(vocab_size=29, n_layer=2, n_head=2, n_kv_head=2, n_embd=16, head_dim=8, n_ff=24, norm_eps=1e-5,
               norm_position="post", norm="layer_norm", feed_forward="gelu", positions="absolute", bias=True),
        seed=1,
        clip=3.0,
    ),
}  # fmt: skip


def draw_weights(model: nn.Module, rng: np.random.Generator) -> None:
    """Far larger than an initialisation, no gain 1, no bias 0: no term of a gradient may hide. f32, so exact in f64."""
    for name, p in model.named_parameters():
        gain = "norm" in name and name.endswith("weight")
        value = rng.uniform(0.5, 1.5, p.shape) if gain else rng.normal(0.0, 0.25, p.shape)
        p.data = torch.from_numpy(value.astype(np.float32))


def draw_batches(c: Config, rng: np.random.Generator, shape=(3, 2, 11)) -> tuple[Tensor, Tensor]:
    """Batch 0 ignores scattered targets, batch 1 a whole sequence, batch 2 none."""
    text = rng.integers(0, c.vocab_size, (*shape[:2], shape[2] + 1))
    ids, targets = text[..., :-1].copy(), text[..., 1:].copy()
    targets[0][rng.random(shape[1:]) < 0.25] = IGNORED
    targets[1][1] = IGNORED
    return torch.from_numpy(ids), torch.from_numpy(targets)


def forward_backward(model: Transformer, ids: Tensor, targets: Tensor) -> tuple[dict, dict]:
    """The trace with logits and loss, and every parameter's gradient, which also stays in `.grad`."""
    trace = {}
    model.zero_grad()
    trace["logits"] = model(ids, trace.__setitem__)
    trace["loss"] = mean_loss(trace["logits"], targets)
    trace["loss"].backward()
    grads = {name: file_layout(model.config, name, p.grad) for name, p in model.named_parameters()}
    return {name: value.detach().clone().contiguous() for name, value in trace.items()}, grads


def train(model: Transformer, ids: Tensor, targets: Tensor, clip: float) -> tuple[dict, Tensor]:
    """One AdamW step for each batch: the weights after the last, and each step's gradient norm before clipping."""
    model = copy.deepcopy(model)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in params if p.ndim >= 2], "weight_decay": OPTIMIZER["weight_decay"]},
            {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"],
    )  # fmt: skip
    norms = []
    for batch_ids, batch_targets in zip(ids, targets):
        forward_backward(model, batch_ids, batch_targets)
        norms.append(nn.utils.clip_grad_norm_(params, clip))
        optimizer.step()
    return {name: file_layout(model.config, name, p) for name, p in model.named_parameters()}, torch.stack(norms)


@torch.no_grad()
def greedy(model: Transformer, prompts: Tensor, count: int) -> tuple[Tensor, float]:
    """`count` tokens after each prompt, the prefix computed anew each time; and the margin of the closest choice."""
    ids, margin = prompts, math.inf
    for _ in range(count):
        top = model(ids)[:, -1].topk(2)
        margin = min(margin, (top.values[:, 0] - top.values[:, 1]).min().item())
        ids = torch.cat([ids, top.indices[:, :1]], dim=1)
    return ids[:, prompts.shape[1] :].contiguous(), margin


def golden_values(name: str, case: Case) -> tuple[dict, dict]:
    """What `model.safetensors` and `golden.safetensors` hold. All is f64 but the i32 ids and the names with `_f32`.

    - `ids`, `targets` [3,B,T]; `prompts` and their continuations `greedy`, each up to the end of the context
    - of batch 0 every value of a trace file: `embed` … `final_norm`, `logits`, `loss`, and `grad.NAME`
    - `grad_norms` [3] and `step3.NAME`: AdamW with the metadata's numbers, one step for each batch
    - `logits_f32`, `loss_f32`, `grad_f32.NAME`, `step3_f32.NAME`: the same, computed in f32 from start to end
    """
    rng = np.random.default_rng(case.seed)
    narrow = Transformer(case.config)
    draw_weights(narrow, rng)
    wide = copy.deepcopy(narrow).double()
    ids, targets = draw_batches(case.config, rng)
    prompts = torch.from_numpy(rng.integers(0, case.config.vocab_size, (3, 6)))

    values, grads = forward_backward(wide, ids[0], targets[0])  # the trace's names, logits, loss
    values_f32, grads_f32 = forward_backward(narrow, ids[0], targets[0])
    stepped, norms = train(wide, ids, targets, case.clip)
    stepped_f32, _ = train(narrow, ids, targets, case.clip)
    continuation, margin = greedy(wide, prompts, case.config.max_seq_len - prompts.shape[1])

    clipped = norms > case.clip
    steps = ", ".join(f"{n:.3f}" for n in norms)
    print(f"{name}: loss {values['loss']:.4f}, gradient norms {steps}, clip {case.clip}, greedy margin {margin:.1e}")
    assert margin > 1e-4, f"{name}: greedy margin {margin}, expected over 1e-4: choose another seed"
    assert clipped.any() and not clipped.all(), f"{name}: clip {case.clip} must lie between the gradient norms"
    assert (norms / case.clip - 1).abs().min() > 0.02, f"{name}: clip {case.clip} is too near to a gradient norm"

    values |= {"logits_f32": values_f32["logits"], "loss_f32": values_f32["loss"], "grad_norms": norms}
    for prefix, tensors in (("grad", grads), ("grad_f32", grads_f32), ("step3", stepped), ("step3_f32", stepped_f32)):
        values |= {f"{prefix}.{parameter}": value for parameter, value in tensors.items()}
    whole = {"ids": ids, "targets": targets, "prompts": prompts, "greedy": continuation}
    values |= {key: value.to(torch.int32) for key, value in whole.items()}
    weights = {parameter: file_layout(case.config, parameter, p) for parameter, p in narrow.named_parameters()}
    return weights, values


def write(name: str, case: Case) -> None:
    weights, values = golden_values(name, case)
    directory = GOLDEN / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_json(case.config), indent=2) + "\n")
    write_safetensors(directory / "model.safetensors", weights, {"format": "pt"})
    numbers = {key: repr(value) for key, value in (OPTIMIZER | {"clip": case.clip}).items()}
    write_safetensors(directory / "golden.safetensors", values, numbers)


def check_transformers(name: str) -> None:
    """Hugging Face's own class reads the directory: parameter names, logits and gradients agree.

    Errors are relative to each tensor's largest value. Even a model in f64 rounds its norms, its softmax and RoPE's
    angles to f32 there, so the agreement is f32's.
    """
    from transformers import AutoModelForCausalLM

    golden = load_file(GOLDEN / name / "golden.safetensors")
    model, info = AutoModelForCausalLM.from_pretrained(
        GOLDEN / name, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), f"{name}: {info}"
    logits = model(golden["ids"][0].long()).logits
    mean_loss(logits, golden["targets"][0].long()).backward()
    found = {"logits": logits} | {f"grad.{parameter}": p.grad for parameter, p in model.named_parameters()}
    expected = {key for key in golden if key == "logits" or key.startswith("grad.")}
    assert found.keys() == expected, f"{name}: found {found.keys()}, expected {expected}"
    error = {key: ((a - golden[key]).abs().max() / golden[key].abs().max()).item() for key, a in found.items()}
    worst = max(error, key=error.get)
    print(f"{name}: {type(model).__name__} agrees: logits {error['logits']:.1e}, worst {worst} {error[worst]:.1e}")
    assert error[worst] < 1e-5, f"{name}: {worst} differs by {error[worst]:.1e} of its largest value"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the golden values of tests/golden.")
    parser.add_argument("--check-transformers", action="store_true", help="compare the written files with transformers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if not arguments.check_transformers:
            write(name, case)
        elif name != "classic":
            check_transformers(name)
