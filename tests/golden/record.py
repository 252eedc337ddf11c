"""Record the golden vectors on a GPU: ``python tests/golden/record.py OUT.json.gz``.

Compiles golden_kernels.cu with NVRTC for the present GPU, launches every case through CuPy and stores the outputs bit
for bit, with the GPU, driver, NVRTC and date. ``--compile-only ARCH`` compiles without a GPU and stores nothing.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
HEADER = HERE.parents[1] / "codegen" / "intrinsics" / "hw.cuh"


def load_vectors() -> Any:
    """vectors.py beside this file, whichever way this file was started."""
    spec = importlib.util.spec_from_file_location("golden_vectors", HERE / "vectors.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def compile_cubin(arch: str) -> tuple[bytes, str]:
    """The cubin of golden_kernels.cu and NVRTC's version."""
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) == 2 else result[1:]

    text = (HERE / "golden_kernels.cu").read_bytes()
    program = check(
        nvrtc.nvrtcCreateProgram(text, b"golden_kernels.cu", 1, [HEADER.read_bytes()], [b"gemmtune/hw.cuh"])
    )
    options = [f"--gpu-architecture={arch}".encode(), b"-std=c++17", b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"golden_kernels.cu does not compile for {arch}:\n{log.decode()}")
    cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    major, minor = check(nvrtc.nvrtcVersion())
    return cubin, f"{major}.{minor}"


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
    if options.compile_only:
        cubin, version = compile_cubin(options.compile_only)
        sys.stdout.write(f"{len(cubin)} bytes for {options.compile_only}, NVRTC {version}\n")
        return
    if options.out is None:
        parser.error("the file to write is missing")
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    major, minor = properties["major"], properties["minor"]
    arch = f"sm_{major}{minor}" + ("a" if major in (9, 10) else "")
    cubin, version = compile_cubin(arch)
    module = cupy.cuda.function.Module()
    module.load(cubin)
    data = {
        "schema": 1,
        "gpu": properties["name"].decode(),
        "arch": arch,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": version,
        "date": datetime.now(UTC).date().isoformat(),
        "source_sha256": hashlib.sha256((HERE / "golden_kernels.cu").read_bytes()).hexdigest(),
        "cases": [run_case(module, case) for case in load_vectors().cases()],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(options.out, "wb", mtime=0) as file:
        file.write(json.dumps(data).encode())
    sys.stdout.write(f"{len(data['cases'])} cases from {data['gpu']} in {options.out}\n")


if __name__ == "__main__":
    main()
