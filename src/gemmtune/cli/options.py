"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Shapes = Annotated[list[str] | None, typer.Argument(metavar="MxNxK", help="Shapes, e.g. 4096x4096x1024.")]
M = Annotated[int | None, typer.Option("--m", metavar="M", help="Rows of A and D; with --n and --k a shape more.")]
N = Annotated[int | None, typer.Option("--n", metavar="N", help="Columns of B and D.")]
K = Annotated[int | None, typer.Option("--k", metavar="K", help="The length that is summed over.")]
ShapeFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes",
        metavar="FILE[:TABLE]",
        help="TOML file of tables with shapes = [[M, N, K], ...], or what 'gemmtune shapes' wrote.",
    ),
]
DTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype", metavar="TYPE", help="fp32, tf32, fp16 or bf16 of A and B; may be repeated.  [default: bf16]"
    ),
]
OneDType = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="fp32, tf32, fp16 or bf16 of A and B.")]
OutDType = Annotated[
    str | None,
    typer.Option("--out-dtype", metavar="TYPE", help="fp32, fp16 or bf16 of D.  [default: as A; tf32: fp32]"),
]
Layout = Annotated[
    str, typer.Option("--layout", metavar="nt|nn|tn|tt", help="How A and B are stored; nt is nn.Linear.")
]
Epilogue = Annotated[str, typer.Option("--epilogue", metavar="NAME", help="identity, alpha_beta or bias.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cuda:N, emulator:GPU as in emulator:h200, or replay:FILE.  [default: the GPU, else emulated]",
    ),
]
Runner = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        help="cuda:N, or emulator:GPU as in emulator:h200.  [default: the GPU, else emulated]",
    ),
]
"""A device that runs kernels, which a record does not."""
Database = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="URL", help="The history: a file or a database URL.  [default: $GEMMTUNE_DB, else yours]"
    ),
]
Regime = Annotated[
    str, typer.Option("--regime", metavar="sustained|burst", help="Clocks under steady load, or after idling.")
]
Cache = Annotated[str, typer.Option("--cache", metavar="cold|warm", help="Operands out of L2, or left in it.")]
