"""Hopper's intrinsics in the emulator against NumPy and, where it was recorded, an H200 (hopper-h200.json.gz)."""

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
from gemmtune.device.emulator.launch import SCHEDULES, Buffer, KernelLibrary, Schedule, launch
from gemmtune.device.emulator.tensor_map import encode

HERE = Path(__file__).resolve().parent
RECORD = HERE / "hopper-h200.json.gz"


def _vectors() -> Any:
    name = "hopper_vectors"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / "hopper_vectors.py")
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


CASES = {case.name: case for case in _vectors().cases()}


@lru_cache(maxsize=1)
def _library() -> Path:
    entries = sorted({case.entry for case in CASES.values()})
    return build_kernel(_vectors().text() + "\n".join(f"EMU_EXPORT(call_{e}, {e})" for e in entries), entries[0])


@lru_cache(maxsize=256)
def emulate(name: str, schedule: Schedule) -> np.ndarray:
    """What the emulator leaves in the output of one case."""
    case = CASES[name]
    library = KernelLibrary(_library(), f"call_{case.entry}")
    buffers = {
        key: Buffer(key, array.nbytes, writable=key == case.output, at_end=schedule.at_end)
        for key, array in case.arrays.items()
    }
    try:
        for key, array in case.arrays.items():
            buffers[key].view(np.dtype(np.uint8))[:] = array.reshape(-1).view(np.uint8)
        arguments: list[Any] = [encode(case.map, buffers[case.mapped].address)] if case.map is not None else []
        arguments += [ctypes.c_void_p(b.address) for key, b in buffers.items() if key != case.mapped]
        arguments += [ctypes.c_int32(number) for number in case.numbers]
        launch(
            library, grid=(case.cluster, 1, 1), block=(case.threads, 1, 1), cluster=(case.cluster, 1, 1),
            arguments=arguments, buffers=list(buffers.values()), dynamic_shared=case.shared, schedule=schedule,
        )  # fmt: skip
        like = case.arrays[case.output]
        return buffers[case.output].view(like.dtype).reshape(like.shape).copy()
    finally:
        for buffer in buffers.values():
            buffer.free()
        library.close()


def agree(case: Any, mine: np.ndarray, wanted: np.ndarray) -> None:
    """Bit for bit, or as fp32 sums in an order of their own: within 4 units of 2**-23 of the magnitudes' sum."""
    if case.exact:
        np.testing.assert_array_equal(mine.reshape(-1).view(np.uint8), wanted.reshape(-1).view(np.uint8))
        return
    off = np.abs(mine.astype(np.float64) - wanted.astype(np.float64)) / (case.scale * 2.0**-23)
    assert np.isfinite(mine).all()
    assert off.max() <= 4, f"{off.max():.2f} units"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)
@pytest.mark.parametrize("name", list(CASES))
def test_emulator_does_what_the_isa_says(name: str, schedule: Schedule) -> None:
    agree(CASES[name], emulate(name, schedule), CASES[name].wanted)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    if not RECORD.exists():
        pytest.skip("tests/golden/hopper-h200.json.gz is missing: run tests/golden/record_hopper.py on an H200")
    data = json.loads(gzip.decompress(RECORD.read_bytes()))
    assert data["schema"] == 1
    return {case["name"]: case for case in data["cases"]}


@pytest.mark.parametrize("name", list(CASES))
def test_emulator_agrees_with_the_gpu(name: str, record: dict[str, Any]) -> None:
    if name not in record:
        pytest.skip("not recorded: run tests/golden/record_hopper.py on an H200")
    case, recorded = CASES[name], record[name]
    digest = hashlib.sha256(b"".join(key.encode() + array.tobytes() for key, array in case.arrays.items()))
    assert digest.hexdigest() == recorded["inputs_sha256"], "the inputs changed since the recording: record again"
    theirs = np.frombuffer(base64.b64decode(recorded["output"]), case.arrays[case.output].dtype)
    agree(case, emulate(name, SCHEDULES[0]), theirs.reshape(case.arrays[case.output].shape))
