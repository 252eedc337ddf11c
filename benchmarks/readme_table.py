"""Write the README's results from the result files that it quotes.

    python benchmarks/readme_table.py           # rewrite README.md
    python benchmarks/readme_table.py --check   # exit 1 where README.md differs from the files

They stand between two marker lines: the suite's table, group by group, from ``benchmarks/h200/bf16.json``, the means of
other types and layouts from ``fp16.json``, ``tf32.json`` and ``bf16-layouts.json`` beside it, and those of the other
families from ``main-job.json``. Nothing is typed in by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gemmtune.search.results import BenchRow, ResultFile, Summary, read_result_file, summarise
from gemmtune.search.standing import geometric_mean

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
FOLDER = ROOT / "benchmarks" / "h200"
SUITE, MAIN_JOB = FOLDER / "bf16.json", FOLDER / "main-job.json"
ALSO = {"fp16.json": 42, "tf32.json": 18, "bf16-layouts.json": 27}
"""Shapes of the suite in other types and layouts, and how many there are to be."""
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
COLUMNS = ["M x N x K", "family", "us", "95 %", "TFLOP/s", "of the floor", "vs best", "vs cublas", "vs cublaslt16"]


def suite(result: ResultFile) -> str:
    """Where and how, what it comes to, and a row for each shape."""
    means = summarise(result)
    lines = [
        f"{result.gpu}, driver {result.driver}, CUDA {result.cuda}, {result.date[:10]}, bf16, sums in fp32. "
        f"{result.protocol}",
        "",
        "A ratio is the peer's time over ours: above 1 is faster. `cublaslt16` is the quickest of the first 16 "
        "algorithms that cuBLASLt's heuristics name; *best* is the better of that and cuBLAS. The floor is "
        "what a kernel would take that does what the GPU sustains ([what that is](docs/numbers.md#the-floor)).",
        "",
        f"**{_against(means)}** {_without_the_widest(means.rows)} Geometric means by group:",
        "",
        "| group | shapes | vs best | lowest | vs cublas | of the floor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, group in means.by_group.items():
        if group.vendor is not None:
            cells = [name, str(group.rows), f"{group.vendor.ratio:.3f}x", f"{group.vendor.lowest:.3f}x"]
            cells += [f"{group.ratios['cublas']:.3f}x", f"{100 * group.floor_fraction:.0f} %"]
            lines.append(f"| {' | '.join(cells)} |")
    for how, apart in means.apart.items():
        lines += ["", f"In the same file, {how}: {_against(apart)}"]
    lines += ["", "<details><summary>All shapes</summary>", "", f"| {' | '.join(COLUMNS)} |"]
    lines += [f"|---|---|{'---:|' * (len(COLUMNS) - 2)}", *(_row(row) for row in means.rows), ""]
    lines += [f"{row.problem.key}: {row.unstable} Its interval spans both.\n" for row in means.rows if row.unstable]
    lines.append("</details>")
    return "\n".join(lines) + "\n"


def also(files: Sequence[tuple[ResultFile, int]]) -> str:
    """The means of other types and layouts, each with the trials that it took and what is not measured yet."""
    lines = ["Other types and layouts on the same GPU, timed in the same way:", ""]
    for result, wanted in files:
        kinds = dict.fromkeys((row.dtype, row.layout) for row in result.rows)
        for dtype, layout in kinds:
            rows = [row for row in result.rows if (row.dtype, row.layout) == (dtype, layout)]
            trials = sorted({row.trials for row in rows})
            spent = f"{trials[0]} to {trials[-1]}" if len(trials) > 1 else f"{trials[0]}"
            missing = wanted // len(kinds) - len(rows)
            lines.append(
                f"- {dtype} {layout}, {spent} trials a shape: {_against(summarise(rows))}"
                + (f" {_without_the_widest(rows)}" if max(map(_best, rows)) > 2 else "")
                + (f" {missing} of the suite's shapes not measured yet." if missing else "")
            )
    return "\n".join(lines) + "\n"


def others(result: ResultFile) -> str:
    """The means of the families that do without Hopper's instructions."""
    lines = [
        f"What `simt` and `mma` reach on the same GPU, {len(result.rows)} rows of {result.date[:10]}, older protocol:",
        "",
    ]
    for dtype, ratios in summarise(result).by_dtype.items():
        family = next(row.family for row in result.rows if row.dtype == dtype)
        shown = ", ".join(f"{ratio:.2f}x {peer}" for peer, ratio in ratios.items())
        lines.append(f"- {dtype} ({family}): {shown} (geometric mean)")
    return "\n".join(lines) + "\n"


def _against(means: Summary) -> str:
    vendor = means.vendor
    if vendor is None:
        return "No peer was timed."
    return (
        f"{vendor.ratio:.3f}x the better of cuBLAS and cuBLASLt (geometric mean of {vendor.rows} shapes), lowest "
        f"{vendor.lowest:.3f}x ({vendor.where}), {vendor.losses} of {vendor.rows} below 1."
    )


def _without_the_widest(rows: Sequence[BenchRow]) -> str:
    """The mean without the one row that does most for it, which may be a peer's weakness more than our strength."""
    ratios = {row.problem.key: _best(row) for row in rows}
    widest = max(ratios, key=lambda key: ratios[key])
    rest = geometric_mean([ratio for key, ratio in ratios.items() if key != widest])
    return f"Without the widest win, {ratios[widest]:.2f}x at {widest}, it is {rest:.3f}x."


def _best(row: BenchRow) -> float:
    return min(row.peers.values()) / row.us


def _row(row: BenchRow) -> str:
    ratios = [f"{r:.3f}x" if (r := row.ratio(peer)) is not None else "-" for peer in ("cublas", "cublaslt16")]
    cells = [
        f"{row.m} x {row.n} x {row.k}", row.family, f"{row.us:.4g}", f"{row.us_low:.4g}-{row.us_high:.4g}",
        f"{row.tflops:.0f}", f"{100 * row.floor_fraction:.0f} %", f"{_best(row):.3f}x", *ratios,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def rewritten(readme: str) -> str:
    """The README with its section brought up to date."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"README.md lacks the lines {BEGIN} and {END}.")
    more = also([(read_result_file(FOLDER / name), wanted) for name, wanted in ALSO.items()])
    text = f"{suite(read_result_file(SUITE))}\n{more}\n{others(read_result_file(MAIN_JOB))}"
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Rewrite, or check."""
    old = README.read_text(encoding="utf-8")
    new = rewritten(old)
    if arguments == ["--check"]:
        return int(new != old)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
