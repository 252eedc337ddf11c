"""What holds for every test."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing else: speed is for the benchmarks.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], Any]:
    """Loads a script of the folder ``benchmarks``, named by its path in there; anew at each call."""

    def load(path: str) -> Any:
        name = "benchmark_" + path.removesuffix(".py").replace("/", "_")
        spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parents[1] / "benchmarks" / path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # its dataclasses look for it there
        spec.loader.exec_module(module)
        return module

    return load
