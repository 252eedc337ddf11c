"""A toy family, a pool that compiles nothing and a device that times by formula: studies without a toolchain."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gemmtune.codegen.kernel import CompiledKernel, KernelResources
from gemmtune.db import History
from gemmtune.device.base import Excerpt, Measurement, Outcome, Report, Verification
from gemmtune.device.verify import sample_axis
from gemmtune.space import families
from gemmtune.space.configuration import Parameter
from gemmtune.space.constraint import Constraint
from gemmtune.space.family import Family, Traits
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import gpu
from gemmtune.space.recipe import LaunchRecipe, Tile
from gemmtune.space.space import Space

TEMPLATE = "// {{ entry }} {{ bm }} {{ bn }} {{ stages }} {{ unroll }} {{ order }} {{ pad }}\n"


class Toy(Family):
    """Six knobs, two rules; valid: a few hundred of 2880."""

    name = "toy"
    summary = "for tests"
    constraints = (
        Constraint("threads", "bm * bn <= 64 * 128", "{bm} x {bn} are too many outputs"),
        Constraint("pairs", "stages % 2 == 0 or pad == 0", "{stages} stages take no padding"),
    )

    def unsupported(self, problem, gpu):
        return "toy is for 16 bits" if problem.dtype not in ("bf16", "fp16") else None

    def parameters(self, problem, gpu):
        return (
            Parameter("bm", (16, 32, 64, 128)),
            Parameter("bn", (16, 32, 64, 128)),
            Parameter("stages", (1, 2, 3, 4, 5)),
            Parameter("unroll", (1, 2, 4)),
            Parameter("order", ("row", "column")),
            Parameter("pad", (0, 4, 8)),
        )

    def plan(self, problem, configuration):
        bm, bn = configuration["bm"], configuration["bn"]
        return LaunchRecipe("toy", (256, 1, 1), ("1", "1", "1"), (), Tile(bm, bn, "0", "0"))

    def traits(self, problem, configuration, gpu):
        c = configuration
        return Traits(c["bm"], c["bn"], 32, 1, c["stages"], 256, 1024 * c["stages"], 64, "tensor")

    def context(self, problem, configuration):
        return {}


class FakePool:
    """Every source compiles at once; the text is the cubin. ``fail`` may raise for a configuration."""

    def __init__(self, fail=None, resources=None):
        self.fail = fail or (lambda configuration: None)
        self.resources = resources or (lambda configuration: KernelResources(64, 0, 0, 0))
        self.submitted = []

    def submit(self, source, arch):
        future = Future()
        self.submitted.append(source.configuration)
        error = self.fail(source.configuration)
        if error:
            future.set_exception(error)
        else:
            text = source.text.encode()
            resources = self.resources(source.configuration)
            future.set_result(CompiledKernel(source, arch, text, resources, "13.0", "", 0.01, False))
        return future

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def landscape(c):
    """Microseconds by formula; the best is bm=64 bn=128 stages=4 unroll=2 order=row pad=8 with 10."""
    us = 10.0
    us += 3 * abs((16, 32, 64, 128).index(c["bm"]) - 2) + 3 * abs((16, 32, 64, 128).index(c["bn"]) - 3)
    us += 2 * abs(c["stages"] - 4) + abs((1, 2, 4).index(c["unroll"]) - 1)
    us += 1.5 * (c["order"] == "column") + 0.5 * abs(c["pad"] - 8) / 4
    return us


@dataclass
class FakeDevice:
    """Times by :func:`landscape`; ``outcomes`` maps a configuration to an Outcome, or raises."""

    kind: str = "cuda"
    name: str = "cuda:0"
    outcomes: object = None
    versions: dict = field(default_factory=lambda: {"driver": "1"})
    jobs: list = field(default_factory=list)
    compared: list = field(default_factory=list)
    limits: list = field(default_factory=list)
    closed: bool = False

    @property
    def gpu(self):
        return gpu("h200")

    @property
    def estimates(self):
        return self.kind == "emulator"

    def environment(self):
        return self.versions

    def start(self):
        assert not self.closed

    def run(self, job, limits):
        self.jobs.append(job)
        self.limits.append(limits)
        outcome = self.outcomes(job.kernel.configuration) if self.outcomes else Outcome.CORRECT
        if outcome not in (Outcome.CORRECT, Outcome.ABANDONED):
            return Report(outcome, f"It was {outcome}.")
        return Report(outcome, "", *self._proof(job))

    def _proof(self, job):
        us = landscape(job.kernel.configuration)
        verification = Verification(True, 1e-4, 1e-2, 0.01, ("all",), 1.0)
        if self.estimates:
            return verification, Measurement(us, us, us, estimated=True)
        measurement = Measurement(
            us, us * 0.99, us * 1.01, 20.0, 20 / us, 20 / us * 0.99, 20 / us * 1.01, (us, us), (20.0,)
        )
        return verification, measurement

    def compare(self, jobs, timeout):
        self.compared.append(jobs)
        return [Report(Outcome.CORRECT, "", *self._proof(job)) for job in jobs]

    def close(self):
        self.closed = True


@pytest.fixture(scope="session")
def template_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    (folder / "toy").mkdir()
    (folder / "toy" / "kernel.cu.j2").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def toy(template_folder):
    family = Toy()
    family.template_dirs = (template_folder,)
    return family


@pytest.fixture
def toys(toy, monkeypatch, tmp_path):
    """The toy is the only family that gemmtune knows, and nothing is compiled."""
    monkeypatch.setattr(families, "FAMILIES", {"toy": toy})
    monkeypatch.setattr("gemmtune.search.study.CompilePool", lambda *a, **k: FakePool())
    monkeypatch.setattr("gemmtune.search.recording.baseline_name", lambda problem: "cublas")
    for module in ("study", "result_file"):
        monkeypatch.setattr(f"gemmtune.search.{module}.nvrtc_version", lambda: "13.0")
    monkeypatch.setenv("GEMMTUNE_CACHE", str(tmp_path / "cache"))
    return toy


@pytest.fixture(scope="session")
def problem():
    return Gemm(512, 512, 512, "bf16")


@pytest.fixture(scope="session")
def space(toy, problem):
    return Space(problem, gpu("h200"), [toy])


@pytest.fixture
def fake_device():
    return FakeDevice


@pytest.fixture
def fake_pool():
    return FakePool


def excerpt_of(problem, names=("kernel",), count=24, seed=0):
    """What a device that computes rightly hands back: every output is the reference, rounded to the output's type."""
    rng = np.random.default_rng(seed)
    arrays = problem.inputs(seed)
    rows, columns = (sample_axis(size, count, rng) for size in (problem.m, problem.n))
    kept = dict(arrays)
    kept["a"] = arrays["a"][rows] if problem.layout[0] == "n" else arrays["a"][:, rows]
    kept["b"] = arrays["b"][:, columns] if problem.layout[1] == "n" else arrays["b"][columns]
    if "c" in kept:
        kept["c"] = arrays["c"][np.ix_(rows, columns)]
    if "bias" in kept:
        kept["bias"] = arrays["bias"][:, columns]
    d = problem.reference(arrays, rows, columns)[0].astype(problem.out.np)
    return Excerpt(rows, columns, kept, {name: d.copy() for name in names})


@pytest.fixture(scope="session")
def excerpt():
    return excerpt_of


@pytest.fixture(scope="session")
def time_of():
    return landscape


@pytest.fixture
def history(tmp_path):
    with History(tmp_path / "h.db") as h:
        yield h


@pytest.fixture
def trials_of():
    """What two runs of a study are compared by."""

    def of(history, study_id):
        return [
            (r.number, r.configuration, r.outcome, r.us, r.detail)
            for r in sorted(history.trials(limit=None), key=lambda r: r.number)
            if r.study_id == study_id
        ]

    return of
