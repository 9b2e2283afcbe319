"""What make.py and original.py write of a model in float64, beside the model."""

import json

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

ROWS, LENGTH = 3, 17


def greedy(logits_of, prompt, count):
    """Greedy decoding without a cache, and by how much the likeliest token is ahead of the next."""
    ids, margin = prompt, float("inf")
    with torch.no_grad():
        for _ in range(count):
            logits = logits_of(ids)[:, -1]
            first, second = logits.topk(2).values[0]
            margin = min(margin, ((first - second) / logits.abs().max()).item())
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return ids[0, prompt.shape[1] :].tolist(), margin


def loss_of(logits_of, ids):
    """Mean of -ln p of every token behind the first, of rows of ids."""
    logits = logits_of(ids[:, :-1])
    assert logits.dtype == torch.float64
    return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), logits


def write(directory, logits_of, parameters, vocabulary, seed):
    """A batch, its loss, the logits of all tokens, the gradients of parameters, and 32 tokens of greedy decoding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (ROWS, LENGTH + 1), generator=generator)
    loss, logits = loss_of(logits_of, ids)
    loss.backward()
    trained = [(n, p.grad) for n, p in parameters if p.requires_grad]
    # In f32: rounded once, which is far below what is compared.
    save_file({n: g.to(torch.float32) for n, g in trained}, directory / "gradients.safetensors")
    prompt = ids[:1, :7]
    tokens, margin = greedy(logits_of, prompt, 32)
    assert margin > 1e-3, f"{directory}: a choice by {margin}, which rounding could change; take another seed"
    out = {
        "rows": ROWS,
        "length": LENGTH,
        "ids": ids.flatten().tolist(),
        "loss": loss.item(),
        "logits": logits.flatten().tolist(),
        "norms": {n: g.norm().item() for n, g in trained},
        "prompt": prompt[0].tolist(),
        "greedy": tokens,
    }
    (directory / "values.json").write_text(json.dumps(out) + "\n")
    print(directory.name, "loss", loss.item(), "smallest margin", margin, "tokens", len(set(tokens)))
