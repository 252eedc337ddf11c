"""Recordings as CSV, for spreadsheets: a line for each configuration, a column for each knob and figure."""

from __future__ import annotations

import csv
import io
from typing import Any

from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.errors import RecordingError
from gemmtune.space.recorded.model import Recorded, Recording, observed

_FIGURES = ("us", "us_low", "us_high", "ratio")
_COLUMNS = ("family", "outcome", *_FIGURES, "registers", "detail")
_GPU = "gpu"
"""The GPU that the times are of, in each line; a table need not have it."""
_KNOB = "knob."
"""Columns of knobs begin so: a knob may be called as a figure is."""


def csv_text(recording: Recording) -> str:
    """The rows as CSV; the knobs that a family does not have are left empty."""
    knobs = list(dict.fromkeys(p.name for group in recording.parameters.values() for p in group))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_COLUMNS, _GPU, *(_KNOB + k for k in knobs)])
    for row in recording.rows:
        figures = ["" if (v := getattr(row, name)) is None else repr(v) for name in _FIGURES]
        registers = "" if row.registers is None else row.registers
        values = [row.configuration.get(k, "") for k in knobs]
        family = row.configuration.family
        writer.writerow([family, row.outcome, *figures, registers, row.detail, recording.device_name, *values])
    return out.getvalue()


def read_csv(text: str, name: str) -> Recording:
    """The recording of such a table, with the values that it shows.

    Raises:
        RecordingError: a column is missing, a figure is no number, or the lines are of several GPUs.
    """
    reader = csv.DictReader(io.StringIO(text))
    missing = [c for c in _COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise RecordingError(f"The recording {name!r} lacks the columns {', '.join(missing)}.")
    rows = []
    gpus: dict[str, None] = {}
    for line in reader:
        values = {k.removeprefix(_KNOB): _value(v) for k, v in line.items() if k and k.startswith(_KNOB) and v}
        try:
            figures: dict[str, Any] = {f: float(line[f]) if line[f] else None for f in _FIGURES}
            registers = int(line["registers"]) if line["registers"] else None
        except (TypeError, ValueError) as error:
            raise RecordingError(f"The recording {name!r} has a figure that is no number: {error}.") from None
        gpus |= {name: None for name in [line.get(_GPU)] if name}
        configuration = Configuration.of(line["family"], values)
        rows.append(Recorded(configuration, line["outcome"], **figures, detail=line["detail"], registers=registers))
    if len(gpus) > 1:
        raise RecordingError(f"The recording {name!r} is of several GPUs ({', '.join(gpus)}), whose times never meet.")
    return Recording(name, next(iter(gpus), ""), observed([row.configuration for row in rows]), tuple(rows))


def _value(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        return text
