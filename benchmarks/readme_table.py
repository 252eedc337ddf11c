"""Write the README's result table from the result file it quotes.

    python benchmarks/readme_table.py           # rewrite README.md
    python benchmarks/readme_table.py --check   # exit 1 where README.md differs from the file

The table stands between two marker lines. Every figure comes from ``benchmarks/h200/main-job.json``; nothing is typed
in by hand.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gemmtune.search.results import BenchRow, ResultFile, read_result_file, summarise

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULT = ROOT / "benchmarks" / "h200" / "main-job.json"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def table(result: ResultFile | None) -> str:
    """The section's text: a heading line, the rows and the means; or one line where there is no result file."""
    if result is None:
        return "No result file has been recorded yet.\n"
    peers = list(dict.fromkeys(peer for row in result.rows for peer in row.peers))
    versus = [f"vs {peer}" for peer in peers]
    titles = ["M x N x K", "dtype", "family", "us", "TFLOP/s", "of the floor", *versus, "error / bound"]
    lines = [
        f"{result.gpu}, driver {result.driver}, CUDA {result.cuda}, {result.date[:10]}. {result.protocol}",
        "A ratio is the peer's time over ours: above 1 is faster. The floor is what no kernel beats.",
        "",
        f"| {' | '.join(titles)} |",
        f"|---|---|---|{'---:|' * (len(titles) - 3)}",
        *(_row(row, peers) for row in result.rows),
        "",
    ]
    means = summarise(result)
    for dtype, ratios in means.by_dtype.items():
        shown = ", ".join(f"{ratio:.2f}x {peer}" for peer, ratio in ratios.items())
        lines.append(f"- {dtype}: {shown} (geometric mean)")
    return "\n".join(lines) + "\n"


def _row(row: BenchRow, peers: list[str]) -> str:
    ratios = [f"{r:.2f}x" if (r := row.ratio(peer)) is not None else "-" for peer in peers]
    cells = [
        f"{row.m} x {row.n} x {row.k}", row.dtype, row.family, f"{row.us:.4g}", f"{row.tflops:.0f}",
        f"{100 * row.floor_fraction:.0f} %", *ratios, f"{row.rel_error:.1e} / {row.error_bound:.1e}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def rewritten(readme: str) -> str:
    """The README with its section brought up to date."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"README.md lacks the lines {BEGIN} and {END}.")
    result = read_result_file(RESULT) if RESULT.exists() else None
    return f"{before}{BEGIN}\n\n{table(result)}\n{END}{after}"


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
