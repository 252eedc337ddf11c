"""Record Hopper's golden vectors on an H200: ``python tests/golden/record_hopper.py OUT.json.gz``.

Compiles hopper_kernels.cu.j2 with NVRTC, launches every case through CuPy, says how far it is from what NumPy wants,
where bytes differ, and stores the outputs bit for bit. ``--compile-only`` compiles without a GPU and stores nothing.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

ARCH = "sm_90a"
EXAMPLES = 4
"""Bytes shown of an output that differs."""
sys.path.insert(0, str(Path(__file__).resolve().parent))

import hopper_vectors as vectors  # noqa: E402  (they lie beside this file)
import recording  # noqa: E402


def distance(case: Any, found: np.ndarray) -> str:
    """How far ``found`` is from what the case wants; of bytes that differ, the first few."""
    if not case.exact:
        off = float((np.abs(found.astype(np.float64) - case.wanted) / (case.scale * 2.0**-23)).max())
        return f"{off:.2f} units off"
    mine, wanted = (array.reshape(-1).view(np.uint8) for array in (found, case.wanted))
    places = np.flatnonzero(mine != wanted)
    shown = "".join(f"; byte {at} is {mine[at]:#04x}, wanted {wanted[at]:#04x}" for at in places[:EXAMPLES])
    return f"{places.size / mine.size:.1%} of the bytes differ{shown}"


def run_case(module: Any, case: Any) -> dict[str, Any]:
    """Launch one case, check it and pack its output.

    Raises:
        SystemExit: CUDA reports an error, after which nothing more runs in this process.
    """
    import cupy

    try:
        found = launch(module, case)
    except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
        raise SystemExit(f"The case {case.name!r} ends in a CUDA error: {error}") from error
    sys.stdout.write(f"{case.name}: {distance(case, found)}\n")
    digest = hashlib.sha256(b"".join(key.encode() + array.tobytes() for key, array in case.arrays.items()))
    packed = base64.b64encode(found.tobytes()).decode()
    return {"name": case.name, "entry": case.entry, "inputs_sha256": digest.hexdigest(), "output": packed}


def launch(module: Any, case: Any) -> np.ndarray:
    """What the case's output holds after one launch."""
    import cupy

    from gemmtune.device.tensor_map import BYTES, EncodedMaps

    arrays = {name: cupy.asarray(array.reshape(-1).view(np.uint8)) for name, array in case.arrays.items()}
    arguments: list[Any] = []
    if case.map is not None:
        place = EncodedMaps(case.mapped, case.map).at(arrays[case.mapped].data.ptr)
        words = np.frombuffer(ctypes.string_at(place, BYTES), np.uint64)
        arguments.append(words.view(f"V{BYTES}")[0])
    arguments += [array for name, array in arrays.items() if name != case.mapped]
    arguments += [np.int32(number) for number in case.numbers]
    module.get_function(case.entry)((case.cluster,), (case.threads,), tuple(arguments), shared_mem=case.shared)
    cupy.cuda.runtime.deviceSynchronize()
    like = case.arrays[case.output]
    return np.asarray(cupy.asnumpy(arrays[case.output])).view(like.dtype).reshape(like.shape)


def main() -> None:
    """Record, or only compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    cubin, version = recording.compile_cubin(vectors.text(), "hopper_kernels.cu.j2", ["hw.cuh", "hopper.cuh"], ARCH)
    if options.compile_only:
        sys.stdout.write(f"{len(cubin)} bytes for {ARCH}, NVRTC {version}\n")
        return
    if options.out is None:
        parser.error("the file to write is missing")
    recording.record(options.out, vectors.text(), cubin, version, ARCH, vectors.cases(), run_case)


if __name__ == "__main__":
    main()
