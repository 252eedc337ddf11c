"""``gemmtune shapes``: the matrix multiplications of a model, the most valuable first, for ``tune --shapes``."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Annotated, Any

import typer

from gemmtune.cli import inputs, output
from gemmtune.cli.output import Column
from gemmtune.space.errors import ProblemError, SettingError

_COLUMNS = (
    Column("share", right=True),
    Column("shape"),
    Column("dtype"),
    Column("layout"),
    Column("epilogue"),
    Column("count", right=True),
    Column("layers", long=True),
)
_FORMATS = ("table", "toml", "json", "csv")


def read_tokens(texts: list[str]) -> dict[int, float]:
    """``["16", "4096:0.1"]`` as tokens and their weights; commas separate too, and 1 is the weight where none stands.

    Raises:
        ProblemError: a part is no number of tokens above 0.
    """
    tokens: dict[int, float] = {}
    for part in ",".join(texts).split(","):
        found = re.fullmatch(r"([0-9]+)(?::([0-9]+(?:\.[0-9]+)?))?", part.strip(), re.ASCII)
        weight = float(found[2] or 1) if found else 0.0
        if found is not None and not (int(found[1]) > 0 and weight > 0):
            raise ProblemError(f"Tokens {part!r} are none: number and weight must be above 0, e.g. 16,4096:0.1.")
        if found is None:
            raise ProblemError(f"Tokens {part!r} are malformed: write a number, or NUMBER:WEIGHT, e.g. 1,16,4096:0.1.")
        tokens[int(found[1])] = tokens.get(int(found[1]), 0.0) + weight
    return tokens


def shapes(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model's config.json, or the folder that holds it.")],
    tokens: Annotated[
        list[str] | None,
        typer.Option(
            "--tokens", metavar="T[:W],...", help="Tokens of a pass, with its weight.  [default: 1,16,64,4096]"
        ),
    ] = None,
    tensor_parallel: Annotated[int, typer.Option("--tp", metavar="N", help="GPUs that share every layer.")] = 1,
    forward: Annotated[bool, typer.Option("--forward/--no-forward", help="Whether the forward pass counts.")] = True,
    backward: Annotated[bool, typer.Option("--backward", help="The gradients of inputs and weights too.")] = False,
    fused: Annotated[
        bool, typer.Option("--fused", help="Q, K, V as one product, gate and up as one, as serving engines do.")
    ] = False,
    sequences: Annotated[
        int | None,
        typer.Option("--sequences", metavar="N", help="Rows of the head, where it runs on last tokens alone."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="TYPE", help="fp32, tf32, fp16 or bf16.  [default: the model's, else bf16]"),
    ] = None,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="NAME", help="The GPU whose speed says what is valuable.")
    ] = "h200",
    file: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the file that 'tune --shapes' reads.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="|".join(_FORMATS), help="What is printed.")] = "table",
) -> None:
    """List the matrix multiplications of a model, the most valuable (count x time) first.

    Knows Llama, Mistral, Qwen, Mixtral, DeepSeek and GPT-2 kinds. A share is of the time that the GPU needs at least.
    """
    if form not in _FORMATS:
        raise SettingError(f"The format {form!r} does not exist: choose one of {', '.join(_FORMATS)}.")
    if sequences is not None and sequences < 1:
        raise ProblemError(f"The number of sequences is {sequences}, but it must be at least 1.")
    counts = read_tokens(tokens or ["1,16,64,4096"])
    if file is not None:
        inputs.check_destination(file)

    from gemmtune.search.model_layers import read_model
    from gemmtune.search.model_shapes import model_problems
    from gemmtune.search.shape_file import problems_text, write_problems
    from gemmtune.space.gpu import gpu as named

    found = read_model(model, tensor_parallel=tensor_parallel, fused=fused)
    if found.stored and not dtype:
        output.note(
            f"The configuration of {found.name} names {found.stored}: its products are listed in {found.dtype}; "
            f"--dtype lists them in another."
        )
    card = named(gpu)
    problems = model_problems(
        found, counts, card, forward=forward, backward=backward, dtype=dtype or "", sequences=sequences
    )
    parallel = f", one of {tensor_parallel} GPUs" if tensor_parallel > 1 else ""
    passes = " and ".join(name for name, wanted in (("forward", forward), ("backward", backward)) if wanted)
    title = f"{found.name} ({found.kind}{parallel}), {passes}, tokens {', '.join(map(str, counts))}"
    records: list[dict[str, Any]] = [
        {"share": p.share, "count": p.count, **p.problem.to_json(), "where": list(p.where)} for p in problems
    ]
    if form == "toml":
        sys.stdout.write(problems_text(problems, title))
    elif form == "table":
        rows = [
            (
                f"{100 * p.share:.1f} %", f"{p.problem.m}x{p.problem.n}x{p.problem.k}", p.problem.dtype,
                p.problem.layout, p.problem.epilogue, f"{p.count:g}", ", ".join(p.where),
            )
            for p in problems
        ]  # fmt: skip
        output.show_table(_COLUMNS, rows, title=title)
    else:
        output.show_data(records, "json" if form == "json" else "csv")
    if file is not None:
        write_problems(file, problems, title)
        if form == "table":
            print()
            output.say_next([(f"gemmtune tune --shapes {shlex.quote(file)}", "tune them, the most valuable first")])
