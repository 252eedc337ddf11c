"""Kernels of a pack under compute-sanitizer: ``python benchmarks/memcheck_pack.py PACK OUT.json --only cluster=4x2``.

Every kernel of PACK whose configuration holds one of the texts given by ``--only`` is first proved against float64,
then launched alone under memcheck and racecheck, at its own size and at ragged M (``gemmtune.device.cuda.sanitizer``).
Exit code 1 where one is wrong or not clean.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmtune.device import open_device
from gemmtune.device.base import Device, Job, Limits
from gemmtune.device.cuda.sanitizer import USUAL, sanitize
from gemmtune.pack.format import PackData, read_pack
from gemmtune.pack.rebuild import unpacked
from gemmtune.pack.schema import Kernel
from gemmtune.search.result_file import blank_result
from gemmtune.search.results import save

PROTOCOL = (
    "The kernels of {pack} whose configuration holds {texts}, proved against float64, then launched alone under "
    "compute-sanitizer's {tools}: at its problem's size and, where M is not compiled in, at a ragged M and one row."
)


def job_of(data: PackData, kernel: Kernel) -> Job:
    """The pack's own cubin, on the problem that it was tuned for."""
    return Job(kernel.problem, unpacked(data, kernel), seed=0, measure=False, effort="final")


def examine(job: Job, device: Device, index: int) -> Mapping[str, Any]:
    """What the proof and each tool said of one kernel."""
    report = device.run(job, Limits())
    verdicts = [sanitize(job, tool, index) for tool in USUAL]
    return {
        "problem": job.problem.key,
        "configuration": str(job.kernel.source.configuration),
        "cubin": job.kernel.cubin_sha256,
        "outcome": str(report.outcome),
        **{verdict.tool: verdict.summary for verdict in verdicts},
        "findings": [finding for verdict in verdicts for finding in verdict.findings],
        "clean": all(verdict.clean for verdict in verdicts) and str(report.outcome) == "correct",
    }


def main() -> None:
    """Examine them one by one, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", action="append", required=True, metavar="TEXT", help="a part of a configuration")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    data, device, found = read_pack(options.pack), open_device(options.device), list[Mapping[str, Any]]()
    try:
        for kernel in data.kernels.values():
            if any(text in str(kernel.configuration) for text in options.only):
                found.append(examine(job_of(data, kernel), device, int(options.device.partition(":")[2] or 0)))
                print(*(f"{name}: {value}" for name, value in found[-1].items()), sep="\n", flush=True)  # noqa: T201
        if not found:
            raise SystemExit(f"No kernel of {options.pack} has {' or '.join(options.only)} in its configuration.")
        protocol = PROTOCOL.format(pack=options.pack.name, texts=" or ".join(options.only), tools=" and ".join(USUAL))
        failed = sum(not one["clean"] for one in found)
        summary = {"estimated": False, "kernels": found, "not_clean": failed}
        save(options.output, blank_result(options.output.stem, device, protocol, summary))
    finally:
        device.close()
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
