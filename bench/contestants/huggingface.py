"""transformers' Mamba: its scan step by step, and that of mamba.py (`use_mambapy`)."""

import torch
import transformers
from reference import LR, MAX_NORM, STEPS
from torch_peers import Scan
from transformers import MambaForCausalLM
from transformers.models.mamba.modeling_mamba import mamba_selective_scan
from worker import Repeated, Unsupported

DTYPES = {"f32": torch.float32, "f16": torch.float16}


def version(name):
    return transformers.__version__


def prepare(name, case):
    torch.set_num_threads(case.threads)
    if case.dtype not in DTYPES:
        raise Unsupported(case.dtype)
    mambapy = name == "transformers-mambapy"
    if case.task == "scan":
        return SelectiveScan(case, mambapy)
    model = MambaForCausalLM.from_pretrained(
        case.inputs, dtype=DTYPES[case.dtype], use_mambapy=mambapy
    )
    return {"step": Step, "decode": Decode, "prefill": Prefill}[case.task](model, case)


class SelectiveScan(Scan):
    def __init__(self, case, mambapy):
        super().__init__(case)
        self.mambapy = mambapy

    def forward(self):
        u, delta, a_log, b, c, d, delta_bias, z = self.inputs
        # It has time as the last dimension.
        u, delta, b, c, z = (tensor.transpose(1, 2) for tensor in (u, delta, b, c, z))
        y = mamba_selective_scan(
            u, delta, -a_log.exp(), b, c, d, z, delta_bias, True, use_mambapy=self.mambapy
        )
        return y.transpose(1, 2)


class Step(Repeated):
    """Forward, backward, clipping and AdamW. For any model from ids to logits."""

    def __init__(self, model, case, logits=lambda model, ids: model(ids, use_cache=False).logits):
        self.model, self.logits = model.train(), logits
        self.x, self.y = (torch.from_numpy(ids) for ids in case.ids())
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0, fused=True)

    def once(self):
        logits = self.logits(self.model, self.x)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), self.y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        return loss.item()

    def outputs(self):
        return {"losses": [self.once() for _ in range(STEPS)]}


class Prefill(Repeated):
    def __init__(self, model, case):
        self.model, self.tokens = model.eval(), case.tokens
        self.ids = torch.from_numpy(case.ids())[None]

    @torch.inference_mode()
    def once(self):
        return self.model(self.ids, use_cache=True, logits_to_keep=1)

    def outputs(self):
        return {"logprobs": self.once().logits[0, -1].float().log_softmax(-1)}


class Decode(Prefill):
    """Token by token, each the likeliest, from the state after the prompt."""

    @torch.inference_mode()
    def outputs(self):
        cache, logits = None, None
        for i in range(self.ids.shape[1]):
            out = self.model(self.ids[:, i : i + 1], cache_params=cache, use_cache=True)
            cache, logits = out.cache_params, out.logits
        return {"logprobs": logits[0, -1].float().log_softmax(-1)}

    @torch.inference_mode()
    def run(self, times, clock):
        for _ in range(times):
            out = self.once()
            for _ in range(self.tokens):
                with clock:
                    token = out.logits[:, -1:].argmax(-1)
                    out = self.model(token, cache_params=out.cache_params, use_cache=True)
