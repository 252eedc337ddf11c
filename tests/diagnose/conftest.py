"""A kernel's source to look at."""

import pytest

from gemmtune.codegen.kernel import KernelSource
from gemmtune.codegen.render import render
from gemmtune.space.configuration import Configuration
from gemmtune.space.gemm import Gemm


@pytest.fixture(scope="session")
def source() -> KernelSource:
    """The naive kernel of a small product."""
    return render(Gemm(8, 8, 8), Configuration.of("naive", {}))
