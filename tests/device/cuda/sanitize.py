"""Kernels of every family at ragged sizes, for compute-sanitizer (not a test by itself):

    compute-sanitizer --tool memcheck python tests/device/cuda/sanitize.py
    compute-sanitizer --tool racecheck python tests/device/cuda/sanitize.py

Each is verified by the engine, in this process, as a trial would be; it is not timed.
"""

from __future__ import annotations

import sys

from gemmtune.codegen.nvrtc import compile_kernel
from gemmtune.codegen.render import render
from gemmtune.device.base import Job, Outcome
from gemmtune.device.cuda.engine import CudaEngine
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm

MMA = (
    "mma bm=64 bn=64 bk=64 wm=32 wn=32 stages=3 smem=xor ldmatrix=1 fragments=2 unroll=1 splits={} group=4 store={} "
    "blocks=1"
)
SIMT = "simt bm=64 bn=64 bk=16 tm=8 tn=4 lanes_m=4 vec_a={0} vec_b={0} pad=4 unroll=16 buffers=2 min_blocks=1 group=1"
CASES = (
    (Gemm(130, 136, 264, "fp32"), SIMT.format(4)),
    (Gemm(130, 137, 263, "fp32", epilogue="alpha_beta"), SIMT.format(1)),
    (Gemm(130, 136, 264, "bf16"), MMA.format(1, "direct")),
    (Gemm(130, 138, 264, "fp16", layout="nt", epilogue="bias"), MMA.format(2, "shared")),
    (Gemm(130, 136, 264, "tf32"), MMA.format(2, "shared").replace("bk=64", "bk=32")),
    (Gemm(70, 72, 72, "bf16"), "naive"),
)


def main() -> int:
    """0 where every kernel is right."""
    engine = CudaEngine(0)
    failures = 0
    for seed, (problem, text) in enumerate(CASES):
        configuration = Configuration.parse(text)
        kernel = compile_kernel(render(problem, configuration), engine.gpu.arch)
        report = engine.run(Job(problem, kernel, seed=seed, measure=False))
        failures += report.outcome is not Outcome.CORRECT
        sys.stdout.write(f"{problem.key}: {report.outcome} {report.detail} ({configuration})\n")
        sys.stdout.flush()
    engine.close()
    return failures


if __name__ == "__main__":
    sys.exit(main())
