"""mamba.py: its Mamba with the parallel scan. Its module with a language model around that imports
`mamba_ssm`, which needs CUDA: embedding and head are ours."""

import json
from importlib.metadata import version as package_version

import huggingface
import torch
from mambapy.mamba import Mamba, MambaConfig, RMSNorm
from safetensors.torch import load_file
from worker import Unsupported


def version(name):
    return package_version("mambapy")


def prepare(name, case):
    torch.set_num_threads(case.threads)
    if case.dtype != "f32":
        raise Unsupported(case.dtype)
    model = load(case)
    if case.task == "step":
        return huggingface.Step(model, case, lambda model, ids: model(ids))
    return {"decode": Decode, "prefill": Prefill}[case.task](model, case)


class LM(torch.nn.Module):
    def __init__(self, config, vocab):
        super().__init__()
        self.config, self.mamba = config, Mamba(config)
        self.embedding = torch.nn.Embedding(vocab, config.d_model)
        self.norm_f = RMSNorm(config.d_model, config.rms_norm_eps)

    def forward(self, ids):
        return self.norm_f(self.mamba(self.embedding(ids))) @ self.embedding.weight.T

    def step(self, ids, caches):
        x, caches = self.mamba.step(self.embedding(ids), caches)
        return self.norm_f(x) @ self.embedding.weight.T, caches


def load(case):
    config = json.loads((case.inputs / "config.json").read_text())
    shape = MambaConfig(d_model=config["hidden_size"], n_layers=config["num_hidden_layers"])
    model = LM(shape, config["vocab_size"])
    stored = load_file(case.inputs / "model.safetensors")
    renamed = {
        name.replace("backbone.layers.", "mamba.layers.")
        .replace("backbone.embeddings.", "embedding.")
        .replace("backbone.", ""): tensor
        for name, tensor in stored.items()
    }
    model.load_state_dict(renamed)
    return model


class Prefill(huggingface.Prefill):
    @torch.inference_mode()
    def once(self):
        """Of the head, only the last position is needed."""
        model = self.model
        states = model.mamba(model.embedding(self.ids))[:, -1]
        return model.norm_f(states) @ model.embedding.weight.T

    def outputs(self):
        return {"logprobs": self.once()[0].log_softmax(-1)}


class Decode(Prefill):
    def __init__(self, model, case):
        super().__init__(model, case)
        self.started = self.after_prompt()

    @torch.inference_mode()
    def after_prompt(self):
        """It has no way to go on after a prompt but token by token."""
        config = self.model.config
        empty = torch.zeros(1, config.d_inner, config.d_conv - 1)
        caches = [(None, empty) for _ in range(config.n_layers)]
        for i in range(self.ids.shape[1]):
            logits, caches = self.model.step(self.ids[:, i], caches)
        return logits, caches

    def outputs(self):
        return {"logprobs": self.started[0][0].log_softmax(-1)}

    @torch.inference_mode()
    def run(self, times, clock):
        for _ in range(times):
            logits, caches = self.started[0], list(self.started[1])
            for _ in range(self.tokens):
                with clock:
                    logits, caches = self.model.step(logits.argmax(-1), caches)
