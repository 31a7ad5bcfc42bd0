#!/usr/bin/env python3
"""Writes what a Llama or Qwen3 model computes in `transformers` to a file for `handgrad trace --against`.

    python3 scripts/trace_transformers.py MODEL 1,2,3 theirs.safetensors [2,3,4]
    handgrad trace --model MODEL --ids 1,2,3 [--targets 2,3,4] --against theirs.safetensors

Needs torch, transformers and safetensors. Computes in f32. With targets, loss and gradients are in it, too. Queries and keys
are not: their channels stand in another order there (src/formats/rope_layout.rs).
"""
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


def trace(directory, ids, targets=None):
    """name → tensor, under handgrad's names; `ids` and `targets`: lists of rows."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    values = {}

    def keep(name, module, of_input=False):
        def hook(_, inputs, output):
            value = inputs[0] if of_input else output[0] if isinstance(output, tuple) else output
            values[name] = value.detach()

        module.register_forward_hook(hook)

    keep("embed", model.model.embed_tokens)
    for i, layer in enumerate(model.model.layers):
        keep(f"layers.{i}.attn_norm", layer.input_layernorm)
        keep(f"layers.{i}.attn", layer.self_attn)
        keep(f"layers.{i}.h", layer.post_attention_layernorm, of_input=True)
        keep(f"layers.{i}.ffn_norm", layer.post_attention_layernorm)
        keep(f"layers.{i}.ffn", layer.mlp)
        keep(f"layers.{i}.out", layer)
    keep("final_norm", model.model.norm)
    keep("logits", model.lm_head)
    logits = model(torch.tensor(ids)).logits
    if targets:
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten())
        loss.backward()
        values["loss"] = loss.detach()
        values |= {f"grad.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.clone().contiguous() for name, value in values.items()}


if __name__ == "__main__":
    rows = [[[int(n) for n in row.split(",")] for row in text.split(";")] for text in (sys.argv[2], *sys.argv[4:])]
    save_file(trace(sys.argv[1], *rows), sys.argv[3])
