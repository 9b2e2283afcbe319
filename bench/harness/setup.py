"""What contestants need: a virtual environment of Python, and the program in Rust."""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[1]
REQUIREMENTS = BENCH / "requirements.txt"
RUST = BENCH / "rust"


def cache():
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "taipan" / "bench"


def python(say):
    """The interpreter of the virtual environment, made anew when the requirements change."""
    venv = cache() / "venv"
    stamp, wanted = venv / "requirements", hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"making {venv}: some GB are downloaded")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", "-r", REQUIREMENTS], check=True)
        stamp.write_text(wanted)
    return str(venv / "bin/python")


def contestant(burn, say):
    """The program with the contestants in Rust."""
    say("building the contestants in Rust")
    # mamba-rs asks for a newer compiler than it needs. In the directory of the package, because
    # its configuration is there: everything is compiled for this processor.
    command = ["cargo", "build", "--release", "--ignore-rust-version", "--quiet"]
    subprocess.run(command + ["--features", "burn"] * burn, cwd=RUST, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", RUST / "target"))
    return str(target / "release/contestant")


def environment(threads):
    """Of workers: as many threads for every library, and no talk with the network."""
    env = dict(os.environ)
    for name in "RAYON", "OMP", "MKL", "OPENBLAS", "NUMEXPR":
        env[f"{name}_NUM_THREADS"] = str(threads)
    env["LP_NUM_THREADS"] = str(threads)  # of llvmpipe
    eigen = "true" if threads > 1 else "false"
    env["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}"
    )
    env["JAX_PLATFORMS"] = "cpu"
    env["CUDA_VISIBLE_DEVICES"] = ""
    env["HF_HUB_OFFLINE"] = env["TRANSFORMERS_OFFLINE"] = "1"
    return env


def output(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=BENCH)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def available_memory():
    """Bytes that programs can still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def machine():
    """What a reader needs to know to compare."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "taipan": output("git", "describe", "--always", "--dirty"),
        "rustc": output("rustc", "--version").removeprefix("rustc ").split(" ")[0],
        "python": platform.python_version(),
    }
