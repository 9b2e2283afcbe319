#!/usr/bin/env python3
"""What a training step of mamba-130m would take at best on three GPUs: the tables of gpu.md.

Computed, not measured: for each kernel the larger of two times, that of its memory traffic at the
GPU's bandwidth and that of its vector instructions at the GPU's rate, as if nothing else cost
anything. Instructions are those of AMD's machine code for RDNA 2, also for the other GPUs.
"""

# From public data sheets: GB/s, and TFLOP/s in f32, two for each fma.
GPUS = {
    "Radeon RX 6800 XT": (512, 20.74),
    "GeForce RTX 3060": (360, 12.74),
    "Apple M1, 8 cores": (68, 2.6),
}

# Vector instructions in the inner loops (`cargo test --workspace --lib shaders::amd -- --nocapture`):
# for a multiply-add of a product, and for a state at a step of the scan.
PRODUCT = 1.02
SCAN_FORWARD = 6.69
SCAN_BACKWARD = 16.94
# exp2 is an instruction of a quarter of the rate, and counts three more.
EXP2 = 3.0
# For an element of a kernel that is bound by memory. A guess that does not matter: it would have to
# be ten times as large to show.
ELEMENT = 20

BATCH, LENGTH = 8, 1024
VOCAB, WIDTH, LAYERS, INNER, STATES, TAPS, RANK = 50280, 768, 24, 1536, 16, 4, 48
TOKENS = BATCH * LENGTH
F32 = 4

# Rows of the scan are split until there are 2^15 invocations, and all segments but the last are
# scanned twice.
CHANNELS = BATCH * INNER
SEGMENTS = -(-(1 << 15) // CHANNELS)
AGAIN = (SEGMENTS - 1) / SEGMENTS if SEGMENTS > 1 else 0.0


def product(m, k, n):
    """Bytes and vector instructions of a product and of its two gradients."""
    return (m * k + k * n + m * n) * F32 * 3, m * k * n * PRODUCT * 3


def elements(count, reads_and_writes):
    return count * reads_and_writes * F32, count * ELEMENT


def add(*costs):
    return tuple(map(sum, zip(*costs)))


def times(count, cost):
    return tuple(count * x for x in cost)


def step():
    """Name → (bytes, vector instructions) of a whole training step."""
    channels, states = TOKENS * INNER, TOKENS * INNER * STATES
    saved = states // 16  # one state in 16 steps
    small = TOKENS * (RANK + 2 * STATES)  # dt, B and C
    parameters = VOCAB * WIDTH + LAYERS * (
        WIDTH + 3 * WIDTH * INNER + INNER * (TAPS + RANK + 2 * STATES + RANK + STATES + 3)
    )
    projections = add(
        product(TOKENS, WIDTH, 2 * INNER),
        product(TOKENS, INNER, RANK + 2 * STATES),
        product(TOKENS, RANK, INNER),
        product(TOKENS, INNER, WIDTH),
    )
    # u, delta, z and y; u and delta once more for segments that are scanned twice.
    forward = (
        ((4 + 2 * AGAIN) * channels + saved + small) * F32,
        states * (1 + AGAIN) * (SCAN_FORWARD + EXP2),
    )
    # The gate's gradient, with y computed again: u, delta, z, dy, dz. Upstream: delta, z, dy, and two
    # results. Backward: u, the saved states, and those two, read and written. Carries of segments:
    # delta and dy again.
    backward = (
        ((5 + 5 + 5 + 2 * AGAIN) * channels + 2 * saved + 4 * small) * F32,
        states * ((SCAN_BACKWARD + EXP2) + (SCAN_FORWARD + EXP2) * (1 + AGAIN)),
    )
    return {
        "products of the layers": times(LAYERS, projections),
        "head and loss": product(TOKENS, WIDTH, VOCAB),
        "scan, forward": times(LAYERS, forward),
        "scan, backward": times(LAYERS, backward),
        # Forward: x, y. Backward: x, dy, dx; x and dy again for the gradients of the taps.
        "convolution": times(LAYERS, elements(channels, 2 + 5)),
        # Forward: two in, two out. Backward: three in, two out.
        "norm and residual": times(LAYERS, elements(TOKENS * WIDTH, 4 + 5)),
        # The norm of the gradients; then θ, m, v read and written, and the gradient.
        "AdamW": elements(parameters, 1 + 7),
    }


def main():
    costs = step()
    seconds = {
        name: [max(b / (gb * 1e9), v / (tf * 1e12 / 2)) for gb, tf in GPUS.values()]
        for name, (b, v) in costs.items()
    }
    print("| kernel | GB | vector instructions, 10⁹ | " + " | ".join(GPUS) + " |")
    print("|---|---|---|" + "---|" * len(GPUS))
    for name, (traffic, vector) in costs.items():
        cells = []
        for (gb, tf), time in zip(GPUS.values(), seconds[name]):
            bound = "memory" if traffic / (gb * 1e9) >= time else "vector units"
            cells.append(f"{1e3 * time:.1f} ms, {bound}")
        print(f"| {name} | {traffic / 1e9:.1f} | {vector / 1e9:.0f} | " + " | ".join(cells) + " |")
    whole = [sum(column) for column in zip(*seconds.values())]
    print("| step | | | " + " | ".join(f"{1e3 * time:.0f} ms" for time in whole) + " |")
    print("| tokens per second | | | " + " | ".join(f"{TOKENS / t:.0f}" for t in whole) + " |")


main()
