"""What benchmarks share that measure one thing on a GPU in this process and write one result file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gemmtune.device import open_device
from gemmtune.device.base import Device
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options: the file to write, and the GPU."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("output", type=Path)
    made.add_argument("--device", default="cuda:0")
    return made


def write(options: argparse.Namespace, protocol: str, measure: Callable[[Device, int], Mapping[str, Any]]) -> None:
    """Write and print the summary that ``measure`` makes, given the device and the number of its GPU."""
    device = open_device(options.device)
    try:
        summary = measure(device, int(options.device.partition(":")[2] or 0))
        save(options.output, blank_result(options.output.stem, device, protocol, summary))
    finally:
        device.close()
    print(*(f"{name}: {value}" for name, value in summary.items()), sep="\n")  # noqa: T201
