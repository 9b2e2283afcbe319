#!/usr/bin/env python3
"""taipan against llama.cpp: decoding and prompts of a Mamba model, in interleaved runs.

    pip install xllamacpp gguf numpy        # and torch, transformers for --check
    cargo build --release
    python3 bench/llama_cpp.py --taipan target/release/taipan
    python3 bench/llama_cpp.py --check      # llama.cpp's probabilities against transformers

A GGUF file of random weights, in the shape of mamba-130m, is written for each type. Each line is
the fastest of some rounds, in ms per token, and the ratio of their rates: above 1, taipan is
faster.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

Q = gguf.GGMLQuantizationType
# The type of the GGUF file, and the flags of taipan.
TYPES = {
    "f32": (Q.F32, ["--dtype", "f32"]),
    "f16": (Q.F16, ["--dtype", "f16"]),
    "q8_0": (Q.Q8_0, ["--quantize", "int8"]),
}
CONV, STATE, EXPAND, EPSILON = 4, 16, 2, 1e-5


def weights(args):
    """The tensors of a model by their names in Hugging Face's files, all in f32."""
    rng = np.random.default_rng(1)
    d, inner, rank = args.d_model, EXPAND * args.d_model, -(-args.d_model // 16)

    def uniform(*shape):
        bound = shape[-1] ** -0.5
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    tensors = {"backbone.embeddings.weight": rng.normal(0, 0.02, (args.vocab_size, d))}
    for i in range(args.n_layer):
        layer = {
            "norm.weight": np.ones(d),
            "mixer.in_proj.weight": uniform(2 * inner, d),
            "mixer.conv1d.weight": uniform(inner, 1, CONV),
            "mixer.conv1d.bias": uniform(inner),
            "mixer.x_proj.weight": uniform(rank + 2 * STATE, inner),
            "mixer.dt_proj.weight": uniform(inner, rank),
            "mixer.dt_proj.bias": np.log(np.expm1(rng.uniform(1e-3, 0.1, inner))),
            "mixer.A_log": np.log(np.tile(np.arange(1, STATE + 1), (inner, 1))),
            "mixer.D": np.ones(inner),
            "mixer.out_proj.weight": uniform(d, inner),
        }
        tensors |= {f"backbone.layers.{i}.{name}": tensor for name, tensor in layer.items()}
    tensors["backbone.norm_f.weight"] = np.ones(d)
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


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


def write_gguf(path, tensors, args, kind):
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(args.d_model)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(args.n_layer)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(EXPAND * args.d_model)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(-(-args.d_model // 16))
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(args.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * args.vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)
    for name, tensor in tensors.items():
        if name == "backbone.embeddings.weight":
            to, typed = "token_embd.weight", True
        elif name == "backbone.norm_f.weight":
            to, typed = "output_norm.weight", False
        else:
            layer, name = name.removeprefix("backbone.layers.").split(".", 1)
            to, typed = NAMES[name]
            to = f"blk.{layer}.{to}"
        if name.endswith("A_log"):
            tensor = -np.exp(tensor)
        if name.endswith("conv1d.weight"):
            tensor = tensor[:, 0]
        # Blocks of q8_0 have 32 elements.
        if not typed or kind == Q.F32 or kind == Q.Q8_0 and tensor.shape[-1] % 32:
            writer.add_tensor(to, tensor)
        elif kind == Q.F16:
            writer.add_tensor(to, tensor.astype(np.float16))
        else:
            writer.add_tensor(to, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def server(path, threads):
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_parallel = 1
    params.n_ctx = 8192
    params.n_batch = params.n_ubatch = 512
    params.n_gpu_layers = 0
    params.warmup = True
    params.verbosity = -1
    return xllamacpp.Server(params)


def complete(llama, prompt, tokens, **options):
    request = {
        "prompt": prompt,
        "n_predict": tokens,
        "samplers": ["top_k"],
        "top_k": 1,
        "cache_prompt": False,
        "ignore_eos": True,
        **options,
    }
    return llama.handle_completions(request)


def ids(count, args):
    return [i * 7919 % args.vocab_size for i in range(count)]


def taipan(args, what, threads, flags):
    shape = ["--d-model", args.d_model, "--n-layer", args.n_layer, "--vocab-size", args.vocab_size]
    rounds = ["--rounds", 8 if what == "decode" else 2]
    command = [args.taipan, "bench", what, *shape, *rounds, "--threads", threads, "--json", *flags]
    return json.loads(subprocess.check_output([str(word) for word in command]))


def compare(args, directory):
    tensors = weights(args)
    print(f"{'':22}  llama.cpp    taipan   ratio   of the bound")
    for name in args.types:
        kind, flags = TYPES[name]
        path = directory / f"{name}.gguf"
        write_gguf(path, tensors, args, kind)
        for threads in args.threads:
            llama = server(path, threads)
            best, fraction = {}, {}

            def took(what, who, ms):
                best[what, who] = min(ms, best.get((what, who), float("inf")))

            for _ in range(args.rounds):
                timings = complete(llama, ids(512, args), 33)["timings"]
                # The first token is part of the prompt.
                decoded = timings["predicted_n"] - 1
                took("decode", "llama.cpp", timings["predicted_ms"] / decoded)
                took("prefill", "llama.cpp", timings["prompt_per_token_ms"])
                for what, extra in ("decode", []), ("prefill", ["--tokens", 512]):
                    report = taipan(args, what, threads, [*flags, *extra])
                    took(what, "taipan", report["token_ms"])
                    fraction[what] = max(report["fraction"], fraction.get(what, 0))
            for what in "decode", "prefill":
                theirs, ours = best[what, "llama.cpp"], best[what, "taipan"]
                line = f"{name:5} {what:8} {threads} threads"
                print(f"{line:22} {theirs:10.2f} {ours:9.2f} {theirs / ours:7.2f} "
                      f"{100 * fraction[what]:6.0f} %", flush=True)
            del llama
        path.unlink()


def check(args, directory):
    """The most probable tokens after a prompt, by llama.cpp and by transformers."""
    import torch
    from transformers import MambaConfig, MambaForCausalLM

    tensors = weights(args)
    path = directory / "check.gguf"
    write_gguf(path, tensors, args, Q.F32)
    prompt = ids(37, args)
    answer = complete(server(path, 1), prompt, 1, n_probs=10)
    found = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    config = MambaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.d_model,
        num_hidden_layers=args.n_layer,
        state_size=STATE,
        conv_kernel=CONV,
        expand=EXPAND,
        layer_norm_epsilon=EPSILON,
    )
    model = MambaForCausalLM(config)
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    state["lm_head.weight"] = state["backbone.embeddings.weight"]
    model.load_state_dict(state)
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    for token in found:
        want = logprobs[token["id"]].item()
        assert abs(token["logprob"] - want) < 1e-3, (token, want)
    print(f"{len(found)} probabilities agree with transformers")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--taipan", default="target/release/taipan", help="the program")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--d-model", type=int, default=768)
    parser.add_argument("--n-layer", type=int, default=24)
    parser.add_argument("--vocab-size", type=int, default=50280)
    parser.add_argument("--check", action="store_true", help="compare probabilities, not times")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (check if args.check else compare)(args, Path(directory))


if __name__ == "__main__":
    main()
