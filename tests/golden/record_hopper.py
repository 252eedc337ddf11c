"""Record Hopper's golden vectors on an H200: ``python tests/golden/record_hopper.py OUT.json.gz``.

Compiles hopper_kernels.cu.j2 with NVRTC, launches every case through CuPy, says how far it is from what NumPy wants,
and stores the outputs bit for bit. ``--compile-only`` compiles without a GPU and stores nothing.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import gzip
import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
HEADERS = HERE.parents[1] / "codegen" / "intrinsics"
ARCH = "sm_90a"
sys.path.insert(0, str(HERE))

import hopper_vectors as vectors  # noqa: E402  (it lies beside this file)


def compile_cubin() -> tuple[bytes, str]:
    """The kernels' cubin and NVRTC's version."""
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) == 2 else result[1:]

    names = ("hw.cuh", "hopper.cuh")
    contents = [(HEADERS / name).read_bytes() for name in names]
    program = check(
        nvrtc.nvrtcCreateProgram(
            vectors.text().encode(), b"hopper.cu", 2, contents, [b"gemmtune/" + name.encode() for name in names]
        )
    )
    options = [f"--gpu-architecture={ARCH}".encode(), b"-std=c++17", b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"hopper_kernels.cu.j2 does not compile for {ARCH}:\n{log.decode()}")
    cubin = b" " * check(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    major, minor = check(nvrtc.nvrtcVersion())
    return cubin, f"{major}.{minor}"


def run_case(module: Any, case: Any) -> dict[str, Any]:
    """Launch one case, check it and pack its output."""
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
    found = cupy.asnumpy(arrays[case.output]).view(like.dtype).reshape(like.shape)
    if case.exact:
        off = float((found.reshape(-1).view(np.uint8) != case.wanted.reshape(-1).view(np.uint8)).mean())
    else:
        off = float((np.abs(found.astype(np.float64) - case.wanted) / (case.scale * 2.0**-23)).max())
    sys.stdout.write(f"{case.name}: {f'{off:.1%} of the bytes differ' if case.exact else f'{off:.2f} units off'}\n")
    digest = hashlib.sha256(b"".join(key.encode() + array.tobytes() for key, array in case.arrays.items()))
    packed = base64.b64encode(found.tobytes()).decode()
    return {"name": case.name, "entry": case.entry, "inputs_sha256": digest.hexdigest(), "output": packed}


def main() -> None:
    """Record, or only compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    cubin, version = compile_cubin()
    if options.compile_only:
        sys.stdout.write(f"{len(cubin)} bytes for {ARCH}, NVRTC {version}\n")
        return
    if options.out is None:
        parser.error("the file to write is missing")
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    module = cupy.cuda.function.Module()
    module.load(cubin)
    data = {
        "schema": 1,
        "gpu": properties["name"].decode(),
        "arch": ARCH,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": version,
        "date": datetime.now(UTC).date().isoformat(),
        "source_sha256": hashlib.sha256(vectors.text().encode()).hexdigest(),
        "cases": [run_case(module, case) for case in vectors.cases()],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(options.out, "wb", mtime=0) as file:
        file.write(json.dumps(data).encode())
    sys.stdout.write(f"{len(data['cases'])} cases from {data['gpu']} in {options.out}\n")


if __name__ == "__main__":
    main()
