"""A program that uses a pack needs no tuner, database, template engine, command line or compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = r"""
import sys, types

BLOCKED = ("optuna", "sqlalchemy", "alembic", "jinja2", "typer", "rich", "cuda", "cupy", "torch",
           "gemmtune.codegen", "gemmtune.db", "gemmtune.search", "gemmtune.cli", "gemmtune.pack.export",
           "gemmtune.pack.check")

class Block:
    def find_spec(self, name, path=None, target=None):
        if any(name == b or name.startswith(b + ".") for b in BLOCKED):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())

import numpy as np
import gemmtune
pack = gemmtune.load_pack(sys.argv[1])
print(pack.explain(64, 32, 16, dtype="fp16").how)

# a launcher and a framework of the test's own
from gemmtune.pack import executor

class Prepared:
    pointer_names = ("a", "b", "d")
    def launch_at(self, addresses, stream, scratch, scalars):
        print("launched", len(addresses), stream)

class Loaded:
    def __init__(self, cubin, recipe): pass
    def prepare(self, env, pointers): return Prepared()

executor.LoadedKernel = Loaded
executor.make_current = lambda: None
executor.identity = lambda index: types.SimpleNamespace(key=pack.devices[0], arch="sm_90a")

class ndarray:
    __module__ = "cupy"
    def __init__(self, host):
        self.data = types.SimpleNamespace(ptr=host.ctypes.data // 256 * 256, device_id=0)
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype

fake = types.ModuleType("cupy")
fake.ndarray = lambda shape, dtype: ndarray(np.empty(shape, dtype))
fake.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=5),
                                  runtime=types.SimpleNamespace(getDevice=lambda: 0))
sys.modules["cupy"] = fake
half = np.float16
d = pack.matmul(ndarray(np.ones((64, 16), half)), ndarray(np.ones((32, 16), half).T))
print(d.shape)
loaded = [name for name in sys.modules if any(name == b or name.startswith(b + ".") for b in BLOCKED)]
print(sorted(loaded))
"""


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pack_loads_explains_and_runs_with_everything_else_blocked(
    write: Callable[..., Path], small_pack: Any
) -> None:
    out = run(PROGRAM, str(write(small_pack)))
    assert out.splitlines() == ["exact", "launched 3 5", "(64, 32)", "['cupy']"]


def test_importing_the_runtime_imports_no_framework() -> None:
    out = run(
        "import sys, gemmtune.pack.runtime; "
        "print([m for m in ('cupy', 'torch', 'ml_dtypes', 'jinja2', 'optuna', 'sqlalchemy') if m in sys.modules])"
    )
    assert out.strip() == "[]"


def test_the_format_needs_the_standard_library_and_space_alone() -> None:
    out = run(
        "import sys, gemmtune.pack.format; own = ('gemmtune.space', 'gemmtune.pack'); "
        "print(sorted(m for m in sys.modules if m.startswith('gemmtune.') and not m.startswith(own)))"
    )
    assert out.strip() == "[]"
