"""The other side of transformers.rs: models of transformers, in f32.

    with_transformers.py make SEQUENCES DIRECTORIES    makes a model in each, as its name says
    with_transformers.py read SEQUENCES DIRECTORIES    reads the model in each

    with_transformers.py generate TEXTS DIRECTORIES    continues texts with the model in each

The first two print the logits after the last token of each sequence, by directory, as JSON; the last
one the ids of each text and of what follows it, of all texts at once and of each alone.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig, MambaForCausalLM

SIZES = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 6}


def random_model(**options):
    model = MambaForCausalLM(MambaConfig(**SIZES, **options))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() >= 2 and not name.endswith("A_log"):
                p.copy_(torch.randn_like(p) * 0.3 / p.shape[-1] ** 0.25)
    return model.eval()


def shards(state, directory):
    """Two files and their index, as older versions of transformers wrote them."""
    names = list(state)
    files = {"pytorch_model-00001-of-00002.bin": names[:5], "pytorch_model-00002-of-00002.bin": names[5:]}
    for file, part in files.items():
        torch.save({name: state[name].clone() for name in part}, directory / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def original(model, directory, dtype):
    """As the paper's code saves it: its names, its config, and the tied head once more."""
    state = {name.replace("embeddings", "embedding"): p.to(dtype) for name, p in model.state_dict().items()}
    state["lm_head.weight"] = state["backbone.embedding.weight"]
    torch.save(state, directory / "pytorch_model.bin")
    config = {"d_model": 24, "n_layer": 2, "vocab_size": 37, "pad_vocab_size_multiple": 8}
    config |= {"ssm_cfg": {"d_state": 6}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True}
    (directory / "config.json").write_text(json.dumps(config))


def make(directory):
    directory.mkdir()
    torch.manual_seed(len(directory.name))
    kind = directory.name
    if kind == "untied":
        model = random_model(tie_word_embeddings=False, use_bias=True, expand=3)
    else:
        model = random_model()
    if kind == "sharded":
        model.save_pretrained(directory, max_shard_size="10KB")
        assert (directory / "model.safetensors.index.json").exists()
    elif kind.startswith("original"):
        dtype = torch.bfloat16 if kind.endswith("half") else torch.float32
        model.to(dtype).float()
        original(model, directory, dtype)
    elif kind.startswith("bin"):
        model.config.save_pretrained(directory)
        state = {name: p for name, p in model.state_dict().items() if name != "lm_head.weight"}
        shards(state, directory) if kind.endswith("sharded") else torch.save(state, directory / "pytorch_model.bin")
    else:
        model.save_pretrained(directory)
    return model


def read(directory):
    config = json.loads((directory / "config.json").read_text())
    if "model_type" in config:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    # The original's names and keys, in transformers' own model.
    ssm = config["ssm_cfg"]
    model = MambaForCausalLM(
        MambaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["d_model"],
            num_hidden_layers=config["n_layer"],
            state_size=ssm["d_state"],
            conv_kernel=ssm["d_conv"],
            intermediate_size=int(ssm["expand"] * config["d_model"]),
            time_step_rank=ssm["dt_rank"],
            use_bias=ssm["bias"],
            use_conv_bias=ssm["conv_bias"],
            tie_word_embeddings=config["tie_embeddings"],
        )
    )
    state = load_file(directory / "model.safetensors")
    model.load_state_dict({name.replace("embedding.", "embeddings."): p for name, p in state.items()}, strict=True)
    return model.eval()


def generate(directory, texts):
    """The texts with what follows them, as lists of ids without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), read(directory)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    rows = model.generate(**inputs, max_new_tokens=20, do_sample=False).tolist()
    padding = (inputs["attention_mask"] == 0).sum(dim=1).tolist()
    return [row[count:] for row, count in zip(rows, padding)]


command, sequences, *directories = sys.argv[1:]
if command == "generate":
    texts = json.loads(sequences)
    for path in map(pathlib.Path, directories):
        alone = [generate(path, [text])[0] for text in texts]
        print(json.dumps({"batched": generate(path, texts), "alone": alone}))
    sys.exit()
ids, logits = torch.tensor(json.loads(sequences)), {}
for path in directories:
    model = {"make": make, "read": read}[command](pathlib.Path(path))
    with torch.no_grad():
        logits[path] = model(ids, use_cache=False).logits[:, -1].double().flatten().tolist()
print(json.dumps(logits))
