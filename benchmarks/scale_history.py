"""A history of a million trials: how long each query takes, opening a study, and how large the file is.

    python benchmarks/scale_history.py OUT.json [--trials 1000000] [--folder DIR] [--keep]

Writes a synthetic SQLite history with the proportions of a recorded one: studies of 400 trials, one of them of 20000,
of ten GPUs, 250 problems and two environments; two trials in three correct, each with kernel, proof and measurement,
three finalists a study; failures of a few kinds. Sources are one text that deflates to the usual length. Then every
``gemmtune query`` runs in a process that has imported everything, whose best of five counts, and as the command is
typed, in processes of its own: the quickest of five by CPU time, told with what importing alone takes. These have the
modules as bytecode, as an installed package has them. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from gemmtune.db import History, StudySpec
from gemmtune.search.result_file import blank_of
from gemmtune.search.results import save
from gemmtune.space.gemm import Gemm
from gemmtune.space.gpu import TABLE

PROTOCOL = (
    "A synthetic history of a million trials in SQLite: query_s is a query in a process that has imported everything, "
    "command the typed command with its imports, as bytecode, the quickest of five by CPU time; seconds."
)

QUERY_BAR, OPEN_BAR = 0.5, 1.0
"""Seconds."""
A_STUDY, LARGE_STUDY = 400, 20000
"""Trials."""
SOURCE, RECIPE, SAMPLES = 5800, 1800, 36
"""Bytes a row, as recorded ones have."""
_SOURCE = zlib.compress(random.Random(1).randbytes(SOURCE).hex().encode(), 1)  # noqa: S311 - no secret
_FAILURES = [
    ("pruned", "It spills {} bytes a thread, more than 512."),
    ("abandoned", "The first launch took {}.4 us, over 3 times the best so far, 277.6 us."),
    ("compile", "kernel.cu({}): error: identifier is undefined"),
    ("wrong", "Element ({}, 7) is off by 0.25, more than the bound."),
    ("launch", "CUDA error 700 after {} launches"),
]
_TILES, _DEPTHS, _STAGES = (16, 32, 64, 96, 128, 192, 256), (16, 32, 64, 128), (2, 3, 4, 5, 6)


def specs(trials: int) -> Iterator[tuple[StudySpec, int]]:
    """Studies with the number of trials of each, ``trials`` in all."""
    shapes = [(m, n, k) for m in (1, 16, 64, 128, 4096) for n in (1024, 2112, 4096, 7168, 8192) for k in range(1, 11)]
    left, i = trials, 0
    while left > 0:
        count = min(left, LARGE_STUDY if i == 0 and trials > 2 * LARGE_STUDY else A_STUDY)
        problem = Gemm(*shapes[i % len(shapes)][:2], 512 * shapes[i % len(shapes)][2], "bf16")
        device = list(TABLE.values())[i // len(shapes) % len(TABLE)]
        environment = {"driver": "580" if i % 2 else "575", "cuda": "13.0"}
        yield (
            StudySpec(
                problem.to_json(), problem.key, "cuda", device, environment, "sustained", "cold", ("simt", "mma"),
                "tpe", i,
            ),
            count,
        )  # fmt: skip
        left, i = left - count, i + 1


def fill(path: Path, trials: int) -> list[StudySpec]:
    """Write the history; its studies."""
    made: list[StudySpec] = []
    draw = random.Random(0)  # noqa: S311 - no secret
    with History(path) as history:
        ids = []
        for spec, count in specs(trials):
            ids.append((history.open_study(spec).id, count))
            made.append(spec)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("INSERT INTO template (id, hash, text) VALUES (1, ?, 'template')", ["t" * 64])
    number = 0
    for study, count in ids:
        connection.execute("BEGIN")
        for table, rows in _study(draw, study, count, number).items():
            marks = ", ".join("?" * len(rows[0]))
            names = ", ".join(rows[0])
            connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", [tuple(r.values()) for r in rows])  # noqa: S608
        connection.execute("COMMIT")
        number += count
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return made


def _study(draw: random.Random, study: int, count: int, first: int) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {
        "kernel": [], "trial": [], "verification": [], "measurement": [], "baseline": []
    }  # fmt: skip
    for i in range(count):
        id_ = first + i + 1
        family = "mma" if draw.random() < 0.75 else "simt"
        knobs = {
            "bm": draw.choice(_TILES), "bn": draw.choice(_TILES), "bk": draw.choice(_DEPTHS), "stages":
            draw.choice(_STAGES), "group": draw.choice((1, 4, 8, 16)), "unroll": draw.choice((1, 2)),
        }  # fmt: skip
        text = f"{family} " + " ".join(f"{k}={v}" for k, v in knobs.items())
        ratio = max(0.05, 1 - abs(draw.gauss(0, 0.3)) - 0.1 * (knobs["bk"] < 32))
        outcome, detail = "correct", ""
        if draw.random() > 0.67:
            outcome, detail = draw.choice(_FAILURES)
            detail = detail.format(draw.randrange(10**4))
        good, final = outcome == "correct", i < 3
        hexes = f"{draw.getrandbits(256):064x}"
        tables["kernel"].append({
            "id": id_, "digest": hexes, "template_id": 1, "configuration": text, "cubin_sha256": hexes[::-1],
            "arch": "sm_90a", "nvrtc": "13.0", "source": _SOURCE, "recipe": json.dumps("r" * RECIPE),
            "registers": 128, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 65536,
        })  # fmt: skip
        tables["trial"].append({
            "id": id_, "uuid": hexes[:32], "study_id": study, "kernel_id": id_, "number": i, "state": "done",
            "family": family, "configuration": text, "configuration_key": text, "outcome": outcome, "detail": detail,
            "pattern": _pattern(detail), "seconds": '{"compile": 0.3, "wall": 0.5}', "started": 1.7e9 + id_,
            "finished": 1.7e9 + id_ + 0.5, "score": -ratio if good else None, "final": good and final,
        })  # fmt: skip
        if not good:
            continue
        tables["verification"].append({
            "trial_id": id_, "passed": True, "rel_error": 1e-7, "error_bound": 1e-6, "excess": 0.1, "coverage": 1.0,
            "checks": json.dumps(["m=512: all"] * 20), "detail": "",
        })  # fmt: skip
        for last in (False, True) if final else (False,):
            measured = 2 * id_ + last
            tables["measurement"].append({
                "id": measured, "uuid": f"{measured:032x}", "trial_id": id_, "final": last, "estimated": False,
                "us": 10 / ratio, "us_low": 9.9 / ratio, "us_high": 10.1 / ratio, "ratio": ratio,
                "ratio_low": 0.99 * ratio, "ratio_high": 1.01 * ratio, "clock_mhz": 1500.0, "throttle": "",
                "counters": "{}", "samples": draw.randbytes(SAMPLES), "measured": 1.7e9 + id_ + last,
            })  # fmt: skip
            row = {"measurement_id": measured, "name": "cublas", "us": 10.0, "samples": draw.randbytes(SAMPLES)}
            tables["baseline"].append(row)
    return tables


def _pattern(detail: str) -> str:
    from gemmtune.db.store import failure_pattern

    return failure_pattern(detail)


COMMANDS: dict[str, list[str]] = {
    "best": ["best"],
    "best of a GPU": ["best", "--gpu", "h200"],
    "best of a problem": ["best", "--shape", "4096x4096x2048"],
    "best of a family": ["best", "--family", "simt"],
    "trials": ["trials"],
    "trials of a GPU": ["trials", "--gpu", "h200"],
    "trials of an outcome": ["trials", "--outcome", "wrong"],
    "trials of an outcome that is rare": ["trials", "--outcome", "timeout"],
    "trials of a family": ["trials", "--family", "simt"],
    "trials of a family without any": ["trials", "--family", "hopper"],
    "failures": ["failures"],
    "failures of a GPU": ["failures", "--gpu", "h200"],
    "failures of a family": ["failures", "--family", "simt"],
    "studies": ["studies"],
    "studies of a GPU": ["studies", "--gpu", "h200"],
    "why": ["why", "mma bm=128 bn=128", "--shape", "4096x4096x4096"],
    "importance of a study": ["importance", "--study", "1"],
    "importance of a GPU": ["importance", "--gpu", "h200"],
    "importance of a family": ["importance", "--family", "mma"],
}


def typed(arguments: list[str], path: Path) -> dict[str, float]:
    """Wall and CPU seconds of a command in a process of its own; the run that took the least CPU time of five."""
    code = "from gemmtune.cli.main import main; main()"
    runs = [timed([sys.executable, "-c", code, "query", *arguments, "--db", str(path)]) for _ in range(5)]
    return min(runs, key=lambda run: run["cpu_s"])


def timed(command: list[str]) -> dict[str, float]:
    """Wall and CPU seconds of a command that finds its modules as bytecode, once it has run before."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_with_bytecode())
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall_s": wall, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


@functools.cache
def _with_bytecode() -> dict[str, str]:
    """An environment in which bytecode is written (which some forbid) and read, in a folder of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return {**environment, "PYTHONPYCACHEPREFIX": folder}


def inside(arguments: list[str], path: Path) -> float:
    """Best of five of the same in this process, where everything is imported; seconds."""
    from gemmtune.cli import main as cli

    def once() -> None:
        with redirect_stdout(StringIO()):
            cli.app(["query", *arguments, "--db", str(path)], standalone_mode=False)

    return best_of(5, once)


def best_of(times: int, act: Callable[[], None]) -> float:
    """The quickest of so many; seconds."""
    out = []
    for _ in range(times):
        began = time.perf_counter()
        act()
        out.append(time.perf_counter() - began)
    return min(out)


def opening(path: Path, spec: StudySpec, *, read: bool) -> float:
    """Seconds to open the history and a study of it, and with ``read`` its trials, as a resumed search does."""

    def once() -> None:
        with History(path) as history:
            study = history.open_study(spec)
            if read:
                study.trials()

    return best_of(3, once)


def main() -> int:
    """Build, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--trials", type=int, default=10**6)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the history in the folder, and use one left there")
    wanted = parser.parse_args()
    folder = wanted.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "history.db"
    began = time.perf_counter()
    studies = [spec for spec, _ in specs(wanted.trials)] if path.exists() else fill(path, wanted.trials)
    print(f"{path}: {path.stat().st_size / 1e9:.2f} GB after {time.perf_counter() - began:.0f} s")  # noqa: T201
    try:
        commands: dict[str, Any] = {}
        for name, arguments in COMMANDS.items():
            commands[name] = {"query_s": inside(arguments, path), "command": typed(arguments, path)}
            print(f"{name:36s} {commands[name]['query_s']:6.3f} s", flush=True)  # noqa: T201
        opened = {
            f"of {count} trials{', all of them read' * read}": opening(path, studies[number], read=read)
            for number, count in ((1, A_STUDY), (0, LARGE_STUDY))
            for read in (False, True)
        }
        alone = [sys.executable, "-c", "import gemmtune.cli.main, gemmtune.cli.query, gemmtune.db"]
        import_s = min(timed(alone)["cpu_s"] for _ in range(5))
        data = {
            "trials": wanted.trials, "studies": len(studies), "bytes": path.stat().st_size, "cores": os.cpu_count(),
            "load": os.getloadavg()[0], "import_cpu_s": import_s, "bars_s": {"query": QUERY_BAR, "open": OPEN_BAR},
            "queries": commands, "open_study_s": opened,
        }  # fmt: skip
        save(wanted.out, blank_of(wanted.out.stem, "", {}, PROTOCOL, data))
    finally:
        if not wanted.keep:
            shutil.rmtree(folder)
    slow = [name for name, row in commands.items() if row["query_s"] > QUERY_BAR]
    # To read so large a study takes half a millisecond a trial: told, and no bar.
    slow += [
        name for name, s in opened.items() if s > OPEN_BAR and name != f"of {LARGE_STUDY} trials, all of them read"
    ]
    print(json.dumps(opened), "slower than its bar:", ", ".join(slow) or "nothing")  # noqa: T201
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
