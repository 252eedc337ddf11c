"""The emulator's intrinsics against what an H200 answered (h200.json.gz, made by record.py).

Data movement, conversions and counters must agree bit for bit. mma sums in fp32 in an order, and with a truncation,
that are the hardware's: those must agree within 4 units of 2**-23 of the sum of the magnitudes (1.9 was seen).
"""

from __future__ import annotations

import base64
import ctypes
import gzip
import hashlib
import importlib.util
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.device.emulator.build import build_kernel
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, KernelLibrary, launch

HERE = Path(__file__).resolve().parent
RECORD = HERE / "h200.json.gz"


def _vectors() -> Any:
    name = "golden_vectors"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / "vectors.py")
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


CASES = {case.name: case for case in _vectors().cases()}


@lru_cache(maxsize=1)
def _library() -> Path:
    """All golden kernels in one library, each under a symbol of its own."""
    entries = sorted({case.entry for case in CASES.values()})
    exports = "\n".join(f"EMU_EXPORT(call_{entry}, {entry})" for entry in entries)
    return build_kernel((HERE / "golden_kernels.cu").read_text() + exports, entries[0])


def emulate(case: Any, schedule: Any) -> dict[str, np.ndarray]:
    """The outputs of one case in the emulator."""
    library = KernelLibrary(_library(), f"call_{case.entry}")
    buffers = [
        Buffer(name, array.nbytes, writable=name in case.outputs, at_end=schedule.at_end)
        for name, array in case.arrays.items()
    ]
    try:
        for buffer, array in zip(buffers, case.arrays.values(), strict=True):
            buffer.view(np.dtype(np.uint8))[:] = array.reshape(-1).view(np.uint8)
        arguments: list[Any] = [ctypes.c_void_p(b.address) for b in buffers]
        if case.count is not None:
            arguments.append(ctypes.c_int(case.count))
        launch(
            library, grid=(1, 1, 1), block=(case.threads, 1, 1), arguments=arguments, buffers=buffers,
            dynamic_shared=case.shared, schedule=schedule,
        )  # fmt: skip
        out = {}
        for buffer in buffers:
            if buffer.writable:
                like = case.arrays[buffer.name]
                out[buffer.name] = buffer.view(like.dtype).reshape(like.shape).copy()
        return out
    finally:
        for buffer in buffers:
            buffer.free()
        library.close()


def mma_scale(case: Any) -> np.ndarray:
    """|a| |b| + |d| of each accumulator, from the fragments by their documented layout."""
    kind, k = case.tags["kind"], case.tags["k"]
    a, b, d = (case.arrays[n] for n in "abd")
    count = len(a)
    full_a, full_b = np.zeros((count, 16, k)), np.zeros((count, k, 8))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        if kind == "tf32":
            for i in range(4):
                full_a[:, g + i % 2 * 8, t + i // 2 * 4] = a.view(np.float32)[:, lane, i]
            for i in range(2):
                full_b[:, t + i * 4, g] = b.view(np.float32)[:, lane, i]
            continue
        for i in range(a.shape[2]):
            for half in range(2):
                full_a[:, g + i % 2 * 8, t * 2 + half + i // 2 * 8] = widen(a[:, lane, i], half, kind)
        for i in range(b.shape[2]):
            for half in range(2):
                full_b[:, t * 2 + half + i * 8, g] = widen(b[:, lane, i], half, kind)
    with np.errstate(invalid="ignore"):
        product = np.abs(full_a) @ np.abs(full_b)
    out = np.abs(d).astype(np.float64)
    for lane in range(32):
        g, t = lane // 4, lane % 4 * 2
        for i in range(4):
            out[:, lane, i] += product[:, g + i // 2 * 8, t + i % 2]
    return out


def widen(words: np.ndarray, half: int, kind: str) -> np.ndarray:
    """The low or high 16 bits of each word as numbers."""
    bits = (words >> np.uint32(16 * half)).astype(np.uint16)
    if kind == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    if not RECORD.exists():
        pytest.skip("tests/golden/h200.json.gz is missing: run tests/golden/record.py on an H200")
    data = json.loads(gzip.decompress(RECORD.read_bytes()))
    assert data["schema"] == 1
    return {case["name"]: case for case in data["cases"]}


def test_record_covers_every_case(record: dict[str, Any]) -> None:
    assert set(record) == set(CASES)


@pytest.mark.parametrize("name", list(CASES))
def test_emulator_agrees_with_the_gpu(name: str, record: dict[str, Any]) -> None:
    case, recorded = CASES[name], record[name]
    digest = hashlib.sha256()
    for key, array in case.arrays.items():
        digest.update(key.encode() + array.tobytes())
    assert digest.hexdigest() == recorded["inputs_sha256"], "the inputs changed since the recording: record again"
    mine = emulate(case, SCHEDULES[0])
    for key, packed in recorded["outputs"].items():
        theirs = np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"]).reshape(packed["shape"])
        if case.exact:
            different = np.flatnonzero(mine[key].reshape(-1) != theirs.reshape(-1))
            assert different.size == 0, f"{different.size} differ, first at {different[0]}"
            continue
        scale = mma_scale(case)
        finite = np.isfinite(scale)
        error = np.abs(mine[key][finite].astype(np.float64) - theirs[finite])
        assert (error <= 4 * 2.0**-23 * scale[finite]).all()
        both_nan = np.isnan(mine[key]) & np.isnan(theirs)
        assert (both_nan | (mine[key] == theirs))[~finite].all()


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_runs_the_same_under_every_schedule(name: str) -> None:
    """Also without a recording: no fault, and outputs that no schedule changes."""
    case = CASES[name]
    first = emulate(case, SCHEDULES[0])
    for schedule in SCHEDULES[1:]:
        again = emulate(case, schedule)
        assert all((first[k].view(np.uint8) == again[k].view(np.uint8)).all() for k in first)
