"""Golden values of whole models, from transformers in float64.

    python3 -m pip install torch transformers peft
    python3 crates/taipan-lm/tests/golden/make.py [NAME...]

writes models as transformers saves them, and what it computes with them:

- curve/: tied head; `curve.json` has the batches and losses of 50 steps of AdamW, with clipping, weight decay on
  matrices alone and a learning rate that changes; curve-mamba2/ the same of 20 steps of Mamba-2;
- options/ and others, each with options that are not the default: `values.json` has a batch, its loss, the logits
  of all tokens, the norms of gradients, and 32 tokens of greedy decoding; `gradients.safetensors` the gradients;
- falcon/: a Falcon-Mamba; mamba2/ and mamba2-groups/: Mamba-2; as the others;
- granite/ and granite-rope/: Granite 4.0 H; falcon-h1/ and two with norms: Falcon-H1; curve-hybrid/: 20 steps of a
  Granite;
- lora/, lora-tied/ and lora-hybrid/: adapters of odd/, biased/ and granite/ as PEFT saves them, and the same values of
  the adapted model;
- original/: such a model with the names, the config.json and the pytorch_model.bin of the paper's code;
- torch/: files of torch.save with tensors of every kind, and what must be read from them.
"""

import collections
import json
import pathlib
import shutil
import sys

import peft
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconH1Config,
    FalconMambaConfig,
    GraniteMoeHybridConfig,
    Mamba2Config,
    MambaConfig,
)
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon_h1
from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaRMSNorm
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite
from transformers.models.mamba.modeling_mamba import MambaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import Mamba2RMSNorm, MambaRMSNormGated
from values import loss_of, write

HERE = pathlib.Path(__file__).parent

# Vectors that are random, too.
VECTORS = ("in_proj.bias", "out_proj.bias", "conv1d.bias", "dt_bias", "mixer.norm.weight", "mamba.norm.weight")
VECTORS += tuple(f"{name}_proj.bias" for name in ["q", "k", "v", "o", "gate", "up", "down"])


def wanted(name):
    """Whether a directory is to be written."""
    return not sys.argv[1:] or name in sys.argv[1:]


def model_of(config, seed):
    """A model with random weights of f32, computing in f64."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and not name.endswith("A_log"):
                p.copy_(torch.randn_like(p) * 0.3 / p.shape[-1] ** 0.25)
            elif name.endswith(VECTORS):
                p.copy_(torch.randn_like(p) * 0.1)
    return model


def in_float64(model):
    """The model computing in float64, where transformers asks for float32 here and there."""

    def norm(self, x):
        return self.weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    # All channels together, as up to transformers 5.22, which `norm_groups` of taipan stands for. Since 5.23
    # transformers norms the channels of each group by themselves.
    def gated(self, x, gate):
        return norm(self, x * torch.nn.functional.silu(gate))

    def gated_groups(self, x, gate):
        gate = torch.nn.functional.silu(gate)
        y = x if self.norm_before_gate else x * gate
        y = y.unflatten(-1, (self.n_groups, -1))
        y = (y / torch.sqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).flatten(-2) * self.weight
        return y * gate if self.norm_before_gate else y

    def angles(self, x, position_ids):
        rope = self.config.rope_parameters
        assert rope["rope_type"] == "default"
        size = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        frequencies = rope["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        turns = (position_ids[..., None] * frequencies).repeat(1, 1, 2)
        return turns.cos(), turns.sin()

    torch.Tensor.float = torch.Tensor.double
    MambaRMSNorm.forward = FalconMambaRMSNorm.forward = Mamba2RMSNorm.forward = norm
    granite.GraniteMoeHybridRMSNorm.forward = falcon_h1.FalconH1RMSNorm.forward = norm
    MambaRMSNormGated.forward = granite.GraniteMoeHybridRMSNormGated.forward = gated
    falcon_h1.FalconH1RMSNormGated.forward = gated_groups
    granite.GraniteMoeHybridRotaryEmbedding.forward = falcon_h1.FalconH1RotaryEmbedding.forward = angles
    for block in getattr(model, "backbone", model.base_model).layers:
        block.residual_in_fp32 = False
    return model.double().train()


def logits_of(model):
    return lambda ids: model(ids, use_cache=False).logits


def decays(name):
    return name.endswith("weight") and "norm" not in name


def curve(name, steps, config):
    if not wanted(name):
        return
    model = model_of(config, 1)
    model.save_pretrained(HERE / name, safe_serialization=True)
    (HERE / name / "generation_config.json").unlink(missing_ok=True)
    model = in_float64(model)
    rows, length = 4, 24
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
        loss, _ = loss_of(logits_of(model), ids)
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"])
        optimiser.step()
        entry = {"ids": ids.flatten().tolist(), "lr": lr, "loss": loss.item(), "norm": norm.item()}
        out["steps"].append(entry)
    (HERE / f"{name}.json").write_text(json.dumps(out) + "\n")
    print("loss", out["steps"][0]["loss"], "to", out["steps"][-1]["loss"])


def values(name, seed, config_class=MambaConfig, **config):
    """A model, and everything that is computed with it."""
    if not wanted(name):
        return None
    config = config_class(**config)
    model = model_of(config, seed)
    directory = HERE / name
    model.save_pretrained(directory, safe_serialization=True)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    model = in_float64(model)
    computed(directory, model, seed + 1)
    return weights


def computed(directory, model, seed):
    """Write what a model in float64 computes, with the gradients of what is trained."""
    # PEFT's names have a prefix, and the name of the adapter.
    named = [(n.removeprefix("base_model.model.").replace(".default", ""), p) for n, p in model.named_parameters()]
    write(directory, logits_of(model), named, model.config.vocab_size, seed)
    (directory / "generation_config.json").unlink(missing_ok=True)


def lora(name, base, seed, **options):
    """An adapter of a model, as PEFT saves it, with changes that matter."""
    if not wanted(name):
        return
    directory = HERE / name
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(HERE / base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_" in n:
                p.copy_(torch.randn_like(p) * 0.3)
    model.peft_config["default"].base_model_name_or_path = base
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    in_float64(model.base_model.model)
    computed(directory, model.double(), seed + 1)


def original():
    """A tied model, its vocabulary padded, as the paper's code saves it."""
    weights = values("original", 21, vocab_size=24, hidden_size=16, num_hidden_layers=2, state_size=4)
    if weights is None:
        return
    directory = HERE / "original"
    (directory / "model.safetensors").unlink()
    state = collections.OrderedDict()
    for name, value in weights.items():
        state[name.replace("embeddings", "embedding")] = value
    state["lm_head.weight"] = state["backbone.embedding.weight"]
    torch.save(state, directory / "pytorch_model.bin")
    config = {
        "d_model": 16,
        "n_layer": 2,
        "vocab_size": 21,
        "ssm_cfg": {"d_state": 4},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 8,
    }
    (directory / "config.json").write_text(json.dumps(config) + "\n")


def torch_files():
    """Every way in which torch stores a tensor that a reader must know."""
    if not wanted("torch"):
        return
    directory = HERE / "torch"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 8 - 1
    state = collections.OrderedDict(
        f32=base,
        f64=base[0].double(),
        f16=base[1].half(),
        bf16=base[:, 0].bfloat16(),
        i64=torch.arange(-2, 3),
        parameter=torch.nn.Parameter(base[0, 0].clone()),
        frozen=torch.nn.Parameter(base[0, 1].clone(), requires_grad=False),
        slice=base[1, 1:, 1:3],
        permuted=base.permute(2, 0, 1),
        shared=base,
        scalar=torch.tensor(2.5),
        empty=torch.zeros(0, 3),
        column=base[:, :1, :1],
    )
    expected = {n: {"shape": list(t.shape), "values": t.double().flatten().tolist()} for n, t in state.items()}
    torch.save(state, directory / "ordered.bin")
    torch.save(dict(state), directory / "protocol4.bin", pickle_protocol=4)
    (directory / "expected.json").write_text(json.dumps(expected) + "\n")
    # What torch adds to the dict of a module: an attribute with versions.
    torch.save(torch.nn.Linear(2, 3, bias=False).state_dict(), directory / "module.bin")


curve("curve", 50, MambaConfig(vocab_size=48, hidden_size=32, num_hidden_layers=2, state_size=8))
curve(
    "curve-mamba2",
    20,
    Mamba2Config(
        vocab_size=48,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=8,
        state_size=16,
        n_groups=2,
        norm_groups=1,
        chunk_size=8,
        tie_word_embeddings=True,
    ),
)
values(
    "options",
    3,
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
values("biased", 5, vocab_size=30, hidden_size=16, num_hidden_layers=2, state_size=4, use_bias=True)
values("states", 7, vocab_size=26, hidden_size=12, num_hidden_layers=2, state_size=64, conv_kernel=2)
values(
    "odd",
    9,
    vocab_size=37,
    hidden_size=19,
    num_hidden_layers=3,
    state_size=7,
    conv_kernel=5,
    expand=2,
    intermediate_size=45,
    use_conv_bias=False,
    tie_word_embeddings=False,
)
values(
    "falcon",
    13,
    FalconMambaConfig,
    vocab_size=23,
    hidden_size=18,
    num_hidden_layers=2,
    state_size=6,
    time_step_rank=3,
    mixer_rms_eps=1e-3,
    tie_word_embeddings=False,
)
values(
    "mamba2",
    41,
    Mamba2Config,
    vocab_size=29,
    hidden_size=24,
    num_hidden_layers=2,
    num_heads=6,
    head_dim=8,
    state_size=10,
    n_groups=1,
    chunk_size=8,
    tie_word_embeddings=True,
)
values(
    "mamba2-groups",
    43,
    Mamba2Config,
    vocab_size=22,
    hidden_size=15,
    num_hidden_layers=2,
    num_heads=6,
    head_dim=5,
    state_size=7,
    n_groups=3,
    norm_groups=1,
    conv_kernel=3,
    chunk_size=4,
    use_bias=True,
    use_conv_bias=False,
    layer_norm_epsilon=1e-3,
    time_step_limit=(0.2, 0.9),
    residual_in_fp32=False,
)
curve(
    "curve-hybrid",
    20,
    GraniteMoeHybridConfig(
        vocab_size=48,
        hidden_size=32,
        num_hidden_layers=3,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=0,
        shared_intermediate_size=40,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_multiplier=0.3,
        mamba_n_heads=8,
        mamba_d_state=16,
        mamba_chunk_size=8,
        embedding_multiplier=4,
        residual_multiplier=0.5,
        logits_scaling=2,
        tie_word_embeddings=True,
    ),
)
values(
    "granite",
    51,
    GraniteMoeHybridConfig,
    vocab_size=27,
    hidden_size=24,
    num_hidden_layers=3,
    layer_types=["mamba", "attention", "mamba"],
    num_local_experts=0,
    shared_intermediate_size=20,
    num_attention_heads=6,
    num_key_value_heads=2,
    attention_multiplier=0.3,
    mamba_n_heads=6,
    mamba_d_state=10,
    mamba_chunk_size=8,
    embedding_multiplier=3,
    residual_multiplier=0.4,
    logits_scaling=2.5,
    position_embedding_type="nope",
    tie_word_embeddings=True,
)
values(
    "granite-rope",
    53,
    GraniteMoeHybridConfig,
    vocab_size=22,
    hidden_size=20,
    num_hidden_layers=3,
    layer_types=["full_attention", "linear_attention", "full_attention"],
    num_local_experts=0,
    shared_intermediate_size=17,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=6,
    attention_bias=True,
    attention_multiplier=0.5,
    position_embedding_type="rope",
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    mamba_n_heads=4,
    mamba_d_head=10,
    mamba_n_groups=2,
    norm_groups=1,
    mamba_d_state=7,
    mamba_d_conv=3,
    mamba_chunk_size=4,
    mamba_conv_bias=False,
    mamba_proj_bias=True,
    time_step_limit=(0.2, 0.9),
    rms_norm_eps=1e-3,
)
values(
    "falcon-h1",
    61,
    FalconH1Config,
    vocab_size=29,
    hidden_size=24,
    num_hidden_layers=2,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rope_parameters={"rope_type": "default", "rope_theta": 1e11},
    mamba_d_ssm=30,
    mamba_n_heads=5,
    mamba_d_state=7,
    mamba_chunk_size=8,
    embedding_multiplier=3.0,
    lm_head_multiplier=0.3,
    mlp_multipliers=[0.7, 1.3],
    key_multiplier=0.6,
    attention_in_multiplier=1.2,
    attention_out_multiplier=0.9,
    ssm_in_multiplier=1.4,
    # In f32 there, exact all the same.
    ssm_multipliers=[0.75, 1.25, 0.5, 1.5, 0.875],
    ssm_out_multiplier=0.8,
    pad_token_id=None,
    tie_word_embeddings=True,
)
values(
    "falcon-h1-gate-first",
    63,
    FalconH1Config,
    vocab_size=21,
    hidden_size=16,
    num_hidden_layers=2,
    intermediate_size=24,
    num_attention_heads=2,
    num_key_value_heads=1,
    attention_bias=True,
    mlp_bias=True,
    projectors_bias=True,
    mamba_d_ssm=None,
    mamba_n_heads=4,
    mamba_n_groups=2,
    mamba_d_state=6,
    mamba_d_conv=2,
    mamba_chunk_size=4,
    mamba_conv_bias=False,
    mamba_rms_norm=True,
    mamba_norm_before_gate=False,
    rms_norm_eps=1e-3,
    pad_token_id=None,
)
values(
    "falcon-h1-norm-first",
    65,
    FalconH1Config,
    vocab_size=23,
    hidden_size=18,
    num_hidden_layers=2,
    intermediate_size=15,
    num_attention_heads=3,
    num_key_value_heads=3,
    mamba_d_ssm=36,
    mamba_n_heads=6,
    mamba_n_groups=3,
    mamba_d_state=5,
    mamba_chunk_size=8,
    mamba_proj_bias=True,
    mamba_rms_norm=True,
    mamba_norm_before_gate=True,
    time_step_limit=(0.1, 0.8),
    ssm_multipliers=[1.5, 0.5, 1.0, 1.25, 1.0],
    pad_token_id=None,
)
lora("lora", "odd", 31, r=3, lora_alpha=6, target_modules=["in_proj", "x_proj", "lm_head"])
lora(
    "lora-tied",
    "biased",
    37,
    r=4,
    lora_alpha=3,
    use_rslora=True,
    target_modules=["in_proj", "embeddings"],
    alpha_pattern={"layers.1.mixer.in_proj": 5},
)
lora(
    "lora-hybrid",
    "granite",
    39,
    r=3,
    lora_alpha=5,
    target_modules=["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"],
)
original()
torch_files()
