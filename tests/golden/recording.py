"""What recording golden vectors of any kind takes: a cubin, the GPU it ran on, and a file."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

INTRINSICS = Path(__file__).resolve().parents[2] / "codegen" / "intrinsics"


def compile_cubin(text: str, name: str, headers: Sequence[str], arch: str) -> tuple[bytes, str]:
    """The cubin of ``text``, which includes these ``gemmtune/`` headers, and NVRTC's version.

    Raises:
        SystemExit: it does not compile.
    """
    from cuda.bindings import nvrtc

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) == 2 else result[1:]

    contents = [(INTRINSICS / header).read_bytes() for header in headers]
    names = [b"gemmtune/" + header.encode() for header in headers]
    program = check(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), len(names), contents, names))
    options = [f"--gpu-architecture={arch}".encode(), b"-std=c++17", b"-default-device"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"{name} does not compile for {arch}:\n{log.decode()}")
    cubin = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    major, minor = check(nvrtc.nvrtcVersion())
    return bytes(cubin), f"{major}.{minor}"


def record(
    out: Path, text: str, cubin: bytes, version: str, arch: str, cases: Iterable[Any], run: Callable[[Any, Any], Any]
) -> None:
    """``run(module, case)`` every case on the present GPU, and write what it returns with where it comes from."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    module = cupy.cuda.function.Module()
    module.load(cubin)
    data = {
        "schema": 1,
        "gpu": properties["name"].decode(),
        "arch": arch,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": version,
        "date": datetime.now(UTC).date().isoformat(),
        "source_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "cases": [run(module, case) for case in cases],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(json.dumps(data).encode())
    sys.stdout.write(f"{len(data['cases'])} cases from {data['gpu']} in {out}\n")
