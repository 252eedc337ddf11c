"""Record the golden vectors on a GPU: ``python tests/golden/record.py OUT.json.gz``.

Compiles golden_kernels.cu with NVRTC for the present GPU, launches every case through CuPy and stores the outputs bit
for bit, with the GPU, driver, NVRTC and date. ``--compile-only ARCH`` compiles without a GPU and stores nothing.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import recording  # noqa: E402  (they lie beside this file)
import vectors  # noqa: E402

KERNELS = "golden_kernels.cu"


def pack(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: dtype, shape and base64 bytes."""
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}


def inputs_digest(case: Any) -> str:
    """Hash of a case's inputs, so that a replay knows that it uses the same."""
    h = hashlib.sha256()
    for name, array in case.arrays.items():
        h.update(name.encode() + array.tobytes())
    return h.hexdigest()


def run_case(module: Any, case: Any) -> dict[str, Any]:
    """Launch one case and pack its outputs."""
    import cupy

    arrays = {name: cupy.asarray(array) for name, array in case.arrays.items()}
    arguments: list[Any] = list(arrays.values())
    if case.count is not None:
        arguments.append(np.int32(case.count))
    module.get_function(case.entry)((1,), (case.threads,), tuple(arguments), shared_mem=case.shared)
    cupy.cuda.runtime.deviceSynchronize()
    outputs = {name: pack(cupy.asnumpy(arrays[name])) for name in case.outputs}
    return {"name": case.name, "entry": case.entry, "inputs_sha256": inputs_digest(case), "outputs": outputs}


def main() -> None:
    """Record, or only compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--compile-only", metavar="ARCH")
    options = parser.parse_args()
    text = (HERE / KERNELS).read_text()
    if options.compile_only:
        cubin, version = recording.compile_cubin(text, KERNELS, ["hw.cuh"], options.compile_only)
        sys.stdout.write(f"{len(cubin)} bytes for {options.compile_only}, NVRTC {version}\n")
        return
    if options.out is None:
        parser.error("the file to write is missing")
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    major, minor = properties["major"], properties["minor"]
    arch = f"sm_{major}{minor}" + ("a" if major in (9, 10) else "")
    cubin, version = recording.compile_cubin(text, KERNELS, ["hw.cuh"], arch)
    recording.record(options.out, text, cubin, version, arch, vectors.cases(), run_case)


if __name__ == "__main__":
    main()
