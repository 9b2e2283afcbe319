"""Golden values of whole models, from transformers' MambaForCausalLM in float64.

    python3 -m pip install torch transformers
    python3 crates/taipan-lm/tests/golden/make.py

writes two models as transformers saves them, and what it computes with them:

- curve/: tied head; `curve.json` has the batches and losses of 50 steps of AdamW, with clipping, weight decay on
  matrices alone and a learning rate that changes;
- options/: every option that is not the default; `options.json` has a batch, its logits, its loss and
  the norm of each gradient, and small ones in full.
"""

import json
import pathlib

import torch
from transformers import MambaConfig, MambaForCausalLM
from transformers.models.mamba.modeling_mamba import MambaRMSNorm

HERE = pathlib.Path(__file__).parent


def model_of(config, seed):
    """A model with random weights of f32, computing in f64."""
    torch.manual_seed(seed)
    model = MambaForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and not name.endswith("A_log"):
                p.copy_(torch.randn_like(p) * 0.3 / p.shape[-1] ** 0.25)
            elif name.endswith(("in_proj.bias", "out_proj.bias", "conv1d.bias")):
                p.copy_(torch.randn_like(p) * 0.1)
    return model


def in_float64(model):
    """The model computing in float64, where transformers asks for float32 here and there."""

    def norm(self, x):
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    torch.Tensor.float = torch.Tensor.double
    MambaRMSNorm.forward = norm
    for block in model.backbone.layers:
        block.residual_in_fp32 = False
    return model.double().train()


def loss_of(model, ids):
    """Mean of -ln p of every token behind the first, of rows of ids."""
    logits = model(ids[:, :-1], use_cache=False).logits
    assert logits.dtype == torch.float64
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), logits


def decays(name):
    return name.endswith("weight") and "norm" not in name


def curve():
    config = MambaConfig(vocab_size=48, hidden_size=32, num_hidden_layers=2, state_size=8)
    model = model_of(config, 1)
    model.save_pretrained(HERE / "curve", safe_serialization=True)
    model = in_float64(model)
    steps, rows, length = 50, 4, 24
    options = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "max_norm": 1.0}
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if decays(n)], "weight_decay": options["weight_decay"]},
        {"params": [p for n, p in named if not decays(n)], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    # A text with something to learn: each token mostly follows from the two before it.
    generator = torch.Generator().manual_seed(2)
    out = {"options": options, "rows": rows, "length": length, "steps": []}
    for step in range(steps):
        ids = torch.randint(0, 48, (rows, length + 1), generator=generator)
        for t in range(2, length + 1):
            known = torch.rand(rows, generator=generator) < 0.8
            ids[:, t] = torch.where(known, (ids[:, t - 1] * 5 + ids[:, t - 2]) % 48, ids[:, t])
        lr = 3e-3 * min(1, (step + 1) / 10)
        for group in optimiser.param_groups:
            group["lr"] = lr
        loss, _ = loss_of(model, ids)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"])
        optimiser.step()
        entry = {"ids": ids.flatten().tolist(), "lr": lr, "loss": loss.item(), "norm": norm.item()}
        out["steps"].append(entry)
    (HERE / "curve.json").write_text(json.dumps(out) + "\n")
    print("loss", out["steps"][0]["loss"], "to", out["steps"][-1]["loss"])


def options():
    config = MambaConfig(
        vocab_size=21,
        hidden_size=20,
        num_hidden_layers=2,
        state_size=5,
        conv_kernel=3,
        expand=3,
        time_step_rank=4,
        use_bias=True,
        use_conv_bias=False,
        layer_norm_epsilon=0.01,
        residual_in_fp32=False,
        tie_word_embeddings=False,
    )
    model = model_of(config, 3)
    model.save_pretrained(HERE / "options", safe_serialization=True)
    model = in_float64(model)
    generator = torch.Generator().manual_seed(4)
    rows, length = 3, 17
    ids = torch.randint(0, 21, (rows, length + 1), generator=generator)
    loss, logits = loss_of(model, ids)
    loss.backward()
    gradients = {n: p.grad.flatten().tolist() for n, p in model.named_parameters() if p.numel() < 150}
    norms = {n: p.grad.norm().item() for n, p in model.named_parameters()}
    out = {
        "rows": rows,
        "length": length,
        "ids": ids.flatten().tolist(),
        "loss": loss.item(),
        "last_logits": logits[:, -1].flatten().tolist(),
        "gradients": gradients,
        "norms": norms,
    }
    (HERE / "options.json").write_text(json.dumps(out) + "\n")


curve()
options()
