"""The modules of this folder, importable by name: the worker process must find the family too."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(scope="session")
def toolchain():
    from gemmtune.codegen.nvrtc import nvrtc_version
    from gemmtune.device.emulator.toolchain import find_toolchain
    from gemmtune.space.errors import ToolchainError

    try:
        nvrtc_version()
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(str(error))
