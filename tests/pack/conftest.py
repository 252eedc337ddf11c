"""Packs made by hand, and stand-ins for CuPy, torch and the launcher that compute on host memory through addresses."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.pack import executor
from gemmtune.pack.format import PackData, write_pack
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table, row_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import gemm_recipe
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe

H200 = gpu("h200")

# ------------------------------------------------------------------------------------------------------ packs by hand


def make_kernel(
    problem: Gemm, *, vector: int = 1, arch: str = H200.arch, workspace: str = "0", tag: str = ""
) -> tuple[Kernel, bytes]:
    """A kernel whose "cubin" tells the fake launcher what to compute."""
    size = problem.a.bytes
    conditions = (
        *gemm_recipe.aligned("a", size, vector),
        *gemm_recipe.aligned("b", size, vector),
        gemm_recipe.RUNTIME_M,
    )
    recipe = LaunchRecipe(
        entry="fake_kernel",
        block=(128, 1, 1),
        grid=gemm_recipe.grid(16, 16),
        arguments=gemm_recipe.arguments(problem, workspace=workspace != "0"),
        tile=gemm_recipe.tile(16, 16, 1),
        workspace=workspace,
        preconditions=conditions,
        constants={"n": problem.n, "k": problem.k},
    )
    cubin = json.dumps({"problem": problem.to_json(), "vector": vector, "arch": arch, "tag": tag}).encode()
    kernel = Kernel(
        sha=hashlib.sha256(cubin).hexdigest(),
        recipe=recipe,
        configuration=Configuration.of("naive", {"bm": 16, "bn": 16}),
        problem=problem,
        arch=arch,
        nvrtc="13.0",
        template_hash="0" * 64,
        registers=40,
        spill_bytes=0,
    )
    return kernel, cubin


def point(axes: dict[str, int], ratio: float | None, us: float = 10.0) -> Point:
    """A measured point, or an estimate where there is no ratio."""
    if ratio is None:
        return Point(axes, us, us, us)
    return Point(axes, us, us * 0.99, us * 1.01, us * ratio, ratio, ratio * 0.99, ratio * 1.01)


@dataclass
class PackMaker:
    """Collects rows and kernels; ``data()`` is the pack."""

    rows: dict[tuple[str, str], list[Row]] = field(default_factory=dict)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    cubins: dict[str, bytes] = field(default_factory=dict)

    def add(
        self, problem: Gemm, ratio: float | None = 1.2, *, span: tuple[int, int] | None = None, won: bool = True,
        device: Any = H200, regime: str = "sustained", us: float = 10.0, **options: Any,
    ) -> Kernel:  # fmt: skip
        """One row and its kernel."""
        kernel, cubin = make_kernel(problem, arch=device.arch, **options)
        self.kernels[kernel.sha], self.cubins[kernel.sha] = kernel, cubin
        axes = {name: (size, size) for name, size in problem.axes.items()}
        points = (point(dict(problem.axes), ratio, us),)
        if span:
            axes["m"] = span
            sizes = sorted({span[0], sum(span) // 2, span[1]})
            points = tuple(point({**problem.axes, "m": m}, (ratio or 1.0) + i / 10) for i, m in enumerate(sizes))
        row = row_of(
            problem,
            axes=axes,
            kernel=kernel.sha if won else BASELINE,
            candidate=None if won else kernel.sha,
            estimated=ratio is None,
            alignment={"a": options.get("vector", 1) * problem.a.bytes},
            points=points,
        )
        self.rows.setdefault((device.short, regime), []).append(row)
        return kernel

    def data(self) -> PackData:
        """The pack."""
        tables = []
        for (short, regime), rows in self.rows.items():
            g = gpu(short)
            tables.append(Table(g.key, g.name, g.arch, regime, "cold", {"driver": "580"}, tuple(rows)))
        sources = {sha: f"// source of {sha}\n" for sha in self.kernels}
        return PackData(tuple(tables), dict(self.kernels), dict(self.cubins), sources)


@pytest.fixture
def maker() -> PackMaker:
    return PackMaker()


@pytest.fixture
def small_pack() -> PackData:
    """Three rows: a winner, a loser, a range."""
    maker = PackMaker()
    maker.add(Gemm(64, 32, 16, "fp16"), 1.3)
    maker.add(Gemm(128, 32, 16, "fp16"), 0.8, won=False, tag="slow")
    maker.add(Gemm(64, 48, 16, "fp32", layout="nn"), 1.1, span=(32, 96))
    return maker.data()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def _write(data: PackData, name: str = "some.kpack") -> Path:
        path = tmp_path / name
        write_pack(path, data, as_zip=name.endswith(".zip"))
        return path

    return _write


# ------------------------------------------------------------------------------------- what a launch does, on the host


def matrix(address: int, rows: int, columns: int, pitch: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The matrix at a host address."""
    nbytes = ((rows - 1) * pitch + columns) * dtype.itemsize
    raw = np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(raw, (rows, columns), (pitch * dtype.itemsize, dtype.itemsize))


def compute(problem: Gemm, env: dict[str, int], at: dict[str, int], alpha: float, beta: float) -> None:
    """D of ``problem`` at the pitches in ``env``, written through the addresses ``at``."""
    m, n, k = env["m"], problem.n, problem.k
    a_shape = (m, k) if problem.layout[0] == "n" else (k, m)
    b_shape = (k, n) if problem.layout[1] == "n" else (n, k)
    a = matrix(at["a"], *a_shape, env["lda"], problem.a.np).astype(np.float64)
    b = matrix(at["b"], *b_shape, env["ldb"], problem.b.np).astype(np.float64)
    d = (a if problem.layout[0] == "n" else a.T) @ (b if problem.layout[1] == "n" else b.T)
    if problem.epi.scalars:
        d = alpha * d
        if beta:
            d = d + beta * matrix(at["c"], m, n, env["ldc"], problem.out.np).astype(np.float64)
    if problem.epi.reads_bias:
        d = d + matrix(at["bias"], 1, n, n, problem.out.np).astype(np.float64)
    matrix(at["d"], m, n, env["ldd"], problem.out.np)[...] = d.astype(problem.out.np)


@dataclass
class Launches:
    """What was launched, in order: ("kernel" or "baseline", problem key, stream)."""

    calls: list[tuple[str, str, int]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    prepared: int = 0
    low_bits: int = 0xFF
    """Address bits in which a launch must agree with its preparation; 0 for memory that nobody aligned."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Replaces the launcher, the baseline and the device's identity; every device is an H200."""
    seen = Launches()

    class FakePrepared:
        def __init__(self, problem: Gemm, recipe: LaunchRecipe, env: dict[str, int], pointers: dict[str, int]) -> None:
            assert recipe.unmet({**env, **{f"ptr_{n}": p for n, p in pointers.items()}}) is None
            self.problem, self.env = problem, env
            self.pointer_names = tuple(a.name for a in recipe.arguments if a.kind == "pointer")
            self.low_bits = [pointers[n] & seen.low_bits for n in self.pointer_names]

        def launch_at(self, addresses: list[int], stream: int, scratch: Any, scalars: dict[str, float]) -> None:
            assert [a & seen.low_bits for a in addresses] == self.low_bits
            at = dict(zip(self.pointer_names, addresses, strict=True))
            seen.calls.append(("kernel", self.problem.with_axes(m=self.env["m"]).key, stream))
            compute(self.problem, self.env, at, scalars.get("alpha", 1.0), scalars.get("beta", 0.0))

    class FakeLoaded:
        def __init__(self, cubin: bytes, recipe: LaunchRecipe) -> None:
            self.problem, self.recipe = Gemm.from_json(json.loads(cubin)["problem"]), recipe
            seen.loaded.append(hashlib.sha256(cubin).hexdigest())

        def prepare(self, env: dict[str, int], pointers: dict[str, int]) -> FakePrepared:
            seen.prepared += 1
            return FakePrepared(self.problem, self.recipe, dict(env), dict(pointers))

    class FakeBaseline:
        def __init__(self, problem: Gemm) -> None:
            self.problem = problem

        def launch(self, at: dict[str, int], stream: int, scalars: dict[str, float]) -> None:
            seen.calls.append(("baseline", self.problem.key, stream))
            env = {k: v for k, v in self.problem.environment().items() if isinstance(v, int)}
            compute(self.problem, env, dict(at), scalars.get("alpha", 1.0), scalars.get("beta", 0.0))

    monkeypatch.setattr(executor, "LoadedKernel", FakeLoaded)
    monkeypatch.setattr(executor, "baseline_for", FakeBaseline)
    monkeypatch.setattr(executor, "make_current", lambda: None)
    monkeypatch.setattr(executor, "identity", lambda index: H200)
    return seen


# -------------------------------------------------------------------------------------------------- frameworks to fake


def aligned(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """Host memory whose address is a multiple of 256, plus ``offset`` bytes."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    raw = np.zeros(count * dtype.itemsize + 512 + offset, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


class Stand:
    """What both fakes know: the current device and stream, and how many arrays were made and copied."""

    device = 0
    stream = 7
    made = 0
    copied = 0
    misaligned = 0


def fake_cupy() -> tuple[types.ModuleType, Any, type[Stand]]:
    """A module that answers like CuPy, its array class, and its state."""
    state = type("State", (Stand,), {})
    module: Any = types.ModuleType("cupy")

    class ndarray:
        __module__ = "cupy"

        def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
            self.host = host
            self.data = types.SimpleNamespace(ptr=host.ctypes.data, device_id=device)
            self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype

        def __setitem__(self, where: Any, value: Any) -> None:
            self.host[where] = value.host

    def empty(shape: tuple[int, ...], dtype: Any) -> Any:
        state.made += 1
        return ndarray(aligned(shape, dtype, state.misaligned), state.device)

    def ascontiguousarray(array: Any) -> Any:
        state.copied += 1
        out = empty(array.shape, array.dtype)
        out.host[...] = array.host
        return out

    @contextmanager
    def on(index: int) -> Iterator[None]:
        before, state.device = state.device, index
        try:
            yield
        finally:
            state.device = before

    module.ndarray, module.zeros, module.ascontiguousarray = empty, empty, ascontiguousarray
    module.cuda = types.SimpleNamespace(
        get_current_stream=lambda: types.SimpleNamespace(ptr=state.stream),
        runtime=types.SimpleNamespace(getDevice=lambda: state.device),
        Device=on,
    )
    return module, ndarray, state


def fake_torch() -> tuple[types.ModuleType, Any, type[Stand]]:
    """A module that answers like torch, its tensor class, and its state."""
    import ml_dtypes

    state = type("State", (Stand,), {"grad": True})
    module: Any = types.ModuleType("torch")
    names = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int32": np.int32}
    dtypes = {name: type("dtype", (), {"__repr__": lambda self, name=name: f"torch.{name}"})() for name in names}
    to_numpy = {dtypes[name]: np.dtype(kind) for name, kind in names.items()}
    from_numpy = {kind: dtype for dtype, kind in to_numpy.items()}

    class Tensor:
        __module__ = "torch"
        requires_grad = False

        def __init__(self, host: np.ndarray[Any, Any], device: int = 0) -> None:
            self.host, self._device = host, device
            self.shape, self.dtype = tuple(host.shape), from_numpy[host.dtype]
            self.is_cuda = device >= 0
            self.device = f"cuda:{device}" if device >= 0 else "cpu"

        def stride(self) -> tuple[int, ...]:
            return tuple(s // self.host.itemsize for s in self.host.strides)

        def data_ptr(self) -> int:
            return int(self.host.ctypes.data)

        def get_device(self) -> int:
            return self._device

        def is_neg(self) -> bool:
            return False

        def new_empty(self, shape: tuple[int, ...], *, dtype: Any) -> Any:
            return empty(shape, dtype=dtype)

        def contiguous(self) -> Any:
            state.copied += 1
            out = empty(self.shape, dtype=self.dtype)
            out.host[...] = self.host
            return out

        def copy_(self, other: Any) -> None:
            self.host[...] = other.host

    def empty(shape: tuple[int, ...], *, dtype: Any, device: Any = None) -> Any:
        state.made += 1
        return Tensor(aligned(shape, to_numpy[dtype], state.misaligned), state.device)

    module.Tensor, module.zeros = Tensor, empty
    module.is_grad_enabled = lambda: state.grad
    for name, dtype in dtypes.items():
        setattr(module, name, dtype)
    module.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=state.stream),
        current_device=lambda: state.device,
    )
    return module, Tensor, state


@dataclass
class Framework:
    """A fake framework in place: ``array(host)`` wraps host memory, ``host(array)`` unwraps it."""

    name: str
    module: Any
    array: Any
    state: Any

    def host(self, array: Any) -> np.ndarray[Any, Any]:
        return array.host  # type: ignore[no-any-return]

    def dtype(self, name: str) -> Any:
        import ml_dtypes

        long = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[name]
        if self.name == "torch":
            return getattr(self.module, long)
        return np.dtype(ml_dtypes.bfloat16) if name == "bf16" else np.dtype(long)


@pytest.fixture(params=["cupy", "torch"])
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """Each of the two fakes, in ``sys.modules`` under the real name."""
    return install(request.param, monkeypatch)


@pytest.fixture
def installer() -> Callable[[str, pytest.MonkeyPatch], Framework]:
    """Puts a fake in place, for tests that choose one themselves."""
    return install


def install(name: str, monkeypatch: pytest.MonkeyPatch) -> Framework:
    from gemmtune.pack import arrays

    module, array, state = fake_cupy() if name == "cupy" else fake_torch()
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(arrays, "_known", {})
    monkeypatch.setattr(arrays, "_made", {})
    return Framework(name, module, array, state)
