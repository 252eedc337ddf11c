"""Packs made by hand, histories to export, and a launcher that computes on host memory through addresses."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmtune.codegen.cache import KernelCache
from gemmtune.db import History
from gemmtune.pack import executor
from gemmtune.pack.format import PackData, write_pack
from gemmtune.pack.runtime import Pack
from gemmtune.pack.schema import BASELINE, Kernel, Point, Row, Table, row_of
from gemmtune.space.configuration import Configuration
from gemmtune.space.families import gemm_recipe
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the modules of this folder, importable by name

from fake_frameworks import Framework, install

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
    us: float = 10.0

    def add(
        self, problem: Gemm, ratio: float | None = 1.2, *, span: tuple[int, int] | None = None, won: bool = True,
        device: Any = H200, regime: str = "sustained", us: float | None = None, **options: Any,
    ) -> Kernel:  # fmt: skip
        """One row and its kernel."""
        kernel, cubin = make_kernel(problem, arch=device.arch, **options)
        self.kernels[kernel.sha], self.cubins[kernel.sha] = kernel, cubin
        axes = {name: (size, size) for name, size in problem.axes.items()}
        points = (point(dict(problem.axes), ratio, us or self.us),)
        if span:
            axes["m"] = span
            sizes = sorted({span[0], sum(span) // 2, span[1]})
            points = tuple(
                point({**problem.axes, "m": m}, (ratio or 1.0) + i / 10, us or self.us) for i, m in enumerate(sizes)
            )
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
def empty_pack(maker: PackMaker) -> Pack:
    return Pack(maker.data(), "empty")


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


# ------------------------------------------------------------------------------------------------------ the frameworks


@pytest.fixture(params=["cupy", "torch"])
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """Each of the two fakes, in ``sys.modules`` under the real name."""
    return install(request.param, monkeypatch)


@pytest.fixture
def installer() -> Callable[[str, pytest.MonkeyPatch], Framework]:
    """Puts a fake in place, for tests that choose one themselves."""
    return install


# -------------------------------------------------------------------------------------------------- histories to export


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "h.db") as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")
