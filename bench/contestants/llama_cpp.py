"""llama.cpp, through PyPI's xllamacpp, with a GGUF file written from the model of the case."""

import json
import tempfile
from importlib.metadata import version as package_version
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from safetensors.numpy import load_file
from worker import Unsupported

Q = gguf.GGMLQuantizationType
TYPES = {"f32": Q.F32, "f16": Q.F16, "int8": Q.Q8_0}

# Names in GGUF files, and whether the tensor has the type of the file.
NAMES = {
    "norm.weight": ("attn_norm.weight", False),
    "mixer.in_proj.weight": ("ssm_in.weight", True),
    "mixer.conv1d.weight": ("ssm_conv1d.weight", False),
    "mixer.conv1d.bias": ("ssm_conv1d.bias", False),
    "mixer.x_proj.weight": ("ssm_x.weight", True),
    "mixer.dt_proj.weight": ("ssm_dt.weight", True),
    "mixer.dt_proj.bias": ("ssm_dt.bias", False),
    "mixer.A_log": ("ssm_a", False),
    "mixer.D": ("ssm_d", False),
    "mixer.out_proj.weight": ("ssm_out.weight", True),
}


def version(name):
    return f"xllamacpp {package_version('xllamacpp')}"


def prepare(name, case):
    if case.dtype not in TYPES:
        raise Unsupported(case.dtype)
    return {"decode": Decode, "prefill": Prefill}[case.task](case)


def renamed(name):
    """The name of a tensor in a GGUF file, and whether it has the type of the file."""
    if name == "backbone.embeddings.weight":
        return "token_embd.weight", True
    if name == "backbone.norm_f.weight":
        return "output_norm.weight", False
    layer, name = name.removeprefix("backbone.layers.").split(".", 1)
    to, typed = NAMES[name]
    return f"blk.{layer}.{to}", typed


def write_gguf(path, model, kind):
    config = json.loads((model / "config.json").read_text())
    vocab = config["vocab_size"]
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(config["intermediate_size"])
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["time_step_rank"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(vocab)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)
    for name, tensor in load_file(model / "model.safetensors").items():
        to, typed = renamed(name)
        if name.endswith("A_log"):
            tensor = -np.exp(tensor)
        if name.endswith("conv1d.weight"):
            tensor = tensor[:, 0]
        # Blocks of q8_0 have 32 elements.
        if not typed or kind == Q.F32 or kind == Q.Q8_0 and tensor.shape[-1] % 32:
            writer.add_tensor(to, np.ascontiguousarray(tensor))
        elif kind == Q.F16:
            writer.add_tensor(to, tensor.astype(np.float16))
        else:
            writer.add_tensor(to, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Server:
    """A model that completes token ids."""

    def __init__(self, case):
        self.ids, self.vocab = case.ids().tolist(), case.sizes["vocab"]
        self.tokens = case.tokens
        params = xllamacpp.CommonParams()
        params.cpuparams.n_threads = case.threads
        params.cpuparams_batch.n_threads = case.threads
        params.n_parallel = 1
        params.n_ctx = len(self.ids) + 2 * self.tokens
        params.n_batch = params.n_ubatch = 512
        params.n_gpu_layers = 0
        params.warmup = True
        params.verbosity = -1
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "model.gguf"
            write_gguf(path, case.inputs, TYPES[case.dtype])
            params.model.path = str(path)
            self.server = xllamacpp.Server(params)

    def complete(self, tokens, **options):
        request = {
            "prompt": self.ids,
            "n_predict": tokens,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "ignore_eos": True,
            **options,
        }
        return self.server.handle_completions(request)

    def outputs(self):
        """It gives probabilities after a prompt only; decoding is the same graph."""
        answer = self.complete(1, n_probs=self.vocab)
        found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        logprobs = np.full(self.vocab, np.nan, np.float32)
        for token in found:
            logprobs[token["id"]] = token["logprob"]
        return {"logprobs": logprobs}

    def measure(self, times, clock, tokens, wall):
        """By llama.cpp's own clock, which does not count the server; its threads' CPU time is
        shared out in the same proportion."""
        for _ in range(times):
            before = clock.wall, clock.cpu
            with clock:
                timings = self.complete(tokens)["timings"]
            whole = clock.wall - before[0]
            clock.wall = before[0] + wall(timings)
            clock.cpu = before[1] + (clock.cpu - before[1]) * wall(timings) / whole


class Prefill(Server):
    def run(self, times, clock):
        self.measure(times, clock, 1, lambda timings: timings["prompt_ms"] / 1e3)


class Decode(Server):
    def run(self, times, clock):
        # The first token is part of the prompt.
        def wall(timings):
            each = timings["predicted_ms"] / (timings["predicted_n"] - 1)
            return self.tokens * each / 1e3

        self.measure(times, clock, self.tokens + 1, wall)
