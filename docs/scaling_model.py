#!/usr/bin/env python3
"""What several machines would reach with `mpirun taipan train`: the tables of scaling.md.

Computed, not measured. A step is the larger of computing and sending where they overlap, and their
sum where they do not:

    compute   6 operations per parameter and token, a third of them forward
    scatter   the gradient, all but a rank's own share: overlaps with backward, two thirds of compute
    gather    the parameters, likewise: after the update, overlaps with nothing
    latency   of each message, of which a rank sends one to every other in each bucket, twice, and
              of three small exchanges in which messages go from rank to rank

    python3 docs/scaling_model.py               the tables
    python3 docs/scaling_model.py --measure     latency and bandwidth of TCP on this machine, by a
                                                small program of MPI (needs mpicc and mpirun)
"""

import os
import subprocess
import sys
import tempfile

# Sustained operations per second of a rank: 32 cores of 40 GF/s each, as `taipan bench step` shows
# on one core of an AMD EPYC (Zen 4); and a GPU of 20 TFLOP/s in f32 at a third of it.
RANKS = {"a node of 32 cores": 32 * 40e9, "a GPU": 20e12 / 3}
MODELS = {"130m": 129_135_360, "1.4b": 1_372_178_432}
TOKENS = 8 * 2048  # of a rank in a step, if steps grow with the number of ranks
STEP = 1 << 19  # of all ranks, if they do not
NETWORKS = {"10 Gbit/s": 10e9 / 8, "100 Gbit/s": 100e9 / 8}
LATENCY = 20e-6  # of a message, TCP: see --measure
BYTES = 4  # gradients and parameters in f32
PER_RANK = 1 << 18  # elements of a bucket per rank, as in train/team.rs
MOST = 1 << 27  # elements of a bucket


def step(parameters, flops, bandwidth, ranks, tokens):
    """Seconds of a step, of so many tokens per rank."""
    compute = 6 * parameters * tokens / flops
    share = (ranks - 1) / ranks
    buckets = -(-parameters // min(PER_RANK * ranks, MOST))
    messages = buckets * (ranks - 1) * LATENCY
    one_way = share * parameters * BYTES / bandwidth + messages
    small = 3 * (ranks - 1) * LATENCY
    return max(compute, compute / 3 + one_way) + one_way + small


def table(flops, tokens):
    names = [f"{model}, {network}" for model in MODELS for network in NETWORKS]
    print("| ranks | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for ranks in (8, 64, 512):
        cells = []
        for parameters in MODELS.values():
            for bandwidth in NETWORKS.values():
                seconds = step(parameters, flops, bandwidth, ranks, tokens(ranks))
                alone = step(parameters, flops, bandwidth, 1, tokens(ranks))
                cells.append(f"{ranks * alone / seconds:.0f}× ({100 * alone / seconds:.0f} %)")
        print(f"| {ranks} | " + " | ".join(cells) + " |")
    print()


def tables():
    for rank, flops in RANKS.items():
        print(f"Each rank {rank}, {flops / 1e12:.1f} TFLOP/s; {TOKENS} tokens per rank and step:\n")
        table(flops, lambda _: TOKENS)
        print(f"The same; {STEP} tokens per step, whatever the number of ranks:\n")
        table(flops, lambda ranks: STEP // ranks)


# One message there and back, of 8 bytes and of 1 MiB.
PING = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank; MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char *buffer = calloc(1 << 20, 1);
    int sizes[] = {8, 1 << 20}, rounds[] = {2000, 200};
    for (int s = 0; s < 2; s++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        for (int i = 0; i < rounds[s]; i++) {
            if (rank == 0) MPI_Send(buffer, sizes[s], MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, sizes[s], MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(buffer, sizes[s], MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
        double each = (MPI_Wtime() - began) / (2 * rounds[s]);
        if (rank == 0) printf("%d bytes: %.1f us, %.2f GB/s\n", sizes[s], 1e6 * each, 1e-9 * sizes[s] / each);
    }
    MPI_Finalize();
}
"""


def measure():
    with tempfile.TemporaryDirectory() as directory:
        source, program = os.path.join(directory, "ping.c"), os.path.join(directory, "ping")
        with open(source, "w") as file:
            file.write(PING)
        subprocess.run(["mpicc", "-O2", "-o", program, source], check=True)
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for name in ("tcp", "vader"):
            print(f"{name}:", flush=True)
            command = ["mpirun", "-n", "2", "--oversubscribe", "--mca", "btl", f"self,{name}", program]
            subprocess.run(command, check=True, env=os.environ | root)


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    elif not sys.argv[1:]:
        tables()
    else:
        sys.exit(__doc__)
