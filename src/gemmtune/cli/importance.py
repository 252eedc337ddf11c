"""``gemmtune query importance``: which knobs mattered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemmtune.cli import options, output
from gemmtune.space.errors import UnknownNameError

if TYPE_CHECKING:
    from gemmtune.search.importance import Importance

Study = Annotated[int | None, typer.Option("--study", metavar="ID", help="Of this study alone.")]


def show(
    form: output.Format, db: options.Database, study: int | None, gpu: str | None, family: str | None, **narrow: Any
) -> None:
    """Print the importance of knobs, family by family.

    Raises:
        UnknownNameError: the study, or a name, is not known.
    """
    from gemmtune.db import History
    from gemmtune.db.filter import Filter
    from gemmtune.search.importance import importance

    with History(db, create=False) as history:
        if study is not None and history.study(study) is None:
            raise UnknownNameError(f"There is no study {study} in this history: 'gemmtune query studies' lists them.")
        found = importance(history, Filter(gpu=gpu, family=family, study_id=study, **narrow))
    if form != "table":
        output.show_data([row for one in found for row in _data(one)], form)
        return
    if family is not None and not found:
        from gemmtune.space import families

        families.family(family)
    told = [one for one in found if one.knobs]
    for one in found:
        if not one.knobs:
            output.say(f"{_over(one)}: too few to tell which knob mattered.")
    if not found:
        print("No right kernel is known that fits: widen the query, or tune one with 'gemmtune tune MxNxK'.")
    for i, one in enumerate(told):
        if i:
            print()
        columns = [
            output.Column("importance", right=True),
            output.Column("knob"),
            output.Column("value"),
            output.Column("of the best", right=True),
            output.Column("of all", right=True),
        ]
        rows = [
            [
                f"{k.importance:.1%}", k.name, str(k.favoured),
                _part(k.best_share, one.best), _part(k.share, one.trials),
            ]
            for k in one.knobs
        ]  # fmt: skip
        output.show_table(columns, rows, f"{_over(one)}, and the value that gained most among the best {one.best}")


def _over(one: Importance) -> str:
    trials, studies = output.counted(one.trials, "correct trial"), output.counted(one.studies, "study", "studies")
    return f"{one.family}: {trials} of {studies}"


def _part(share: float, of: int) -> str:
    """A share as its count too: one of seven is 14 % of the best, and says little."""
    return f"{round(share * of):,} of {of:,} ({share:.0%})"


def _data(one: Importance) -> list[dict[str, Any]]:
    return [
        {
            "family": one.family,
            "trials": one.trials,
            "studies": one.studies,
            "best": one.best,
            "knob": knob.name,
            "importance": knob.importance,
            "favoured": knob.favoured,
            "best_share": knob.best_share,
            "share": knob.share,
        }
        for knob in one.knobs
    ]
