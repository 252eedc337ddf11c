"""A study in the history, as its one owner writes it: claim a configuration, finish it, never touch it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from gemmtune.db import models as m
from gemmtune.db import store
from gemmtune.db.owner import Owner, this_process
from gemmtune.db.queries import CLAIMED, DONE
from gemmtune.db.reading import records
from gemmtune.db.records import CORRECT, MeasurementData, StudySpec, TrialRecord, TrialResult, score
from gemmtune.space.configuration import Configuration
from gemmtune.space.errors import DatabaseError

if TYPE_CHECKING:
    from gemmtune.db.history import History

_trial = m.trial.c
# What every trial writes is built once: making a statement costs more than running it.
_STUDY_ROW = select(m.study.c.id).where(m.study.c.id == bindparam("study")).with_for_update()
_HELD = (_trial.id, _trial.started, _trial.owner_host, _trial.owner_pid, _trial.owner_token)
_TAKEN = select(*_HELD, _trial.number, _trial.state, _trial.configuration).where(
    _trial.study_id == bindparam("study"),
    or_(
        _trial.number.in_(bindparam("numbers", expanding=True)),
        _trial.configuration_key.in_(bindparam("keys", expanding=True)),
    ),
)
_CLAIMS = select(*_HELD).where(_trial.study_id == bindparam("study"), _trial.state == CLAIMED)
_ONE = select(_trial.configuration, _trial.started).where(
    _trial.id == bindparam("trial"), _trial.study_id == bindparam("study"), _trial.state == bindparam("state")
)
_LAST_MEASURED = select(func.max(m.measurement.c.measured)).where(m.measurement.c.trial_id == bindparam("trial"))
_FINISH = update(m.trial).where(
    _trial.id == bindparam("trial"), _trial.study_id == bindparam("study"), _trial.state == bindparam("claimed")
)


@dataclass(frozen=True)
class Study:
    """Handle of one study. Made by :meth:`gemmtune.db.History.open_study`.

    ``resumed`` says whether it was there before; ``parent_id`` is the study it continues in another environment.
    Every method raises :class:`DatabaseError` where the database fails.
    """

    history: History
    spec: StudySpec
    id: int
    uuid: str
    parent_id: int | None
    resumed: bool
    _held: dict[int, tuple[str, float]] = field(default_factory=dict, repr=False, compare=False)
    """Configuration and start of what was claimed through this handle."""
    _templates: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Ids of the templates that are known to be there, by hash."""

    def trials(self) -> list[TrialRecord]:
        """The finished trials in order of their number, each number and each configuration once.

        Copies of a study that went on apart may meet in a merge; the trial that finished first then stands for its
        number here. :meth:`gemmtune.db.History.trials` gives them all.
        """
        with self.history.reading() as connection:
            found = records(
                connection,
                m.trial.c.study_id == self.id,
                m.trial.c.state == DONE,
                order=(m.trial.c.number, m.trial.c.finished, m.trial.c.uuid),
            )
        numbers: set[int] = set()
        keys: set[str] = set()
        out: list[TrialRecord] = []
        for trial in found:
            if trial.number not in numbers and trial.configuration_key not in keys:
                out.append(trial)
                numbers.add(trial.number)
                keys.add(trial.configuration_key)
        return out

    def claim(self, number: int, configuration: Configuration) -> int:
        """Reserve ``number`` and ``configuration`` for this process; the trial's id.

        Raises:
            DatabaseError: the number or the configuration is taken, by a finished trial or by a living owner.
        """
        (trial_id,) = self.claim_all([(number, configuration)])
        return trial_id

    def claim_all(self, wanted: Sequence[tuple[int, Configuration]]) -> list[int]:
        """Reserve every number with its configuration, in one transaction; the trials' ids.

        Raises:
            DatabaseError: as :meth:`claim`; then none of them is reserved.
        """
        owner, started = this_process(), self.history.now()
        common = {
            "study_id": self.id,
            "state": CLAIMED,
            "detail": "",
            "pattern": "",
            "seconds": {},
            "started": started,
            "final": False,
            "owner_host": owner.host,
            "owner_pid": owner.pid,
            "owner_token": owner.token,
        }
        claimed: dict[int, tuple[str, float]] = {}
        keys = [configuration.key for _, configuration in wanted]
        same = {"study": self.id, "numbers": [number for number, _ in wanted], "keys": keys}
        with self.history.writing() as connection:
            if connection.dialect.name not in ("sqlite", "postgresql"):
                # Where writers are not one after another anyway, the study's row orders the claims of a study.
                connection.execute(_STUDY_ROW, {"study": self.id})
            taken = connection.execute(_TAKEN, same).all()
            if any(trial.state == CLAIMED for trial in taken) and self._release(connection, own=False):
                taken = connection.execute(_TAKEN, same).all()
            if taken:
                numbers = {number for number, _ in wanted}
                raise DatabaseError(self._conflict(taken[0], by_number=taken[0].number in numbers))
            for number, configuration in wanted:
                row = {
                    **common,
                    "uuid": store.new_uuid(),
                    "number": number,
                    "family": configuration.family,
                    "configuration": str(configuration),
                    "configuration_key": configuration.key,
                }
                claimed[store.add(connection, m.trial, row)] = str(configuration), started
        self._held.update(claimed)
        return list(claimed)

    def _conflict(self, trial: Any, *, by_number: bool) -> str:
        what = f"Trial {trial.number} of study {self.id}" if by_number else f"Configuration {trial.configuration}"
        if trial.state == DONE:
            return f"{what} is already recorded as trial {trial.number}: read the study's trials before going on."
        owner = _owner(trial)
        cure = "wait for that one or stop it"
        if owner.host != this_process().host:
            cure += "; if it is gone, run again in an hour or call release_claims(force=True)"
        return f"{what} is being tried by {owner}, and one process owns a study: {cure}."

    def finish(self, trial_id: int, result: TrialResult) -> None:
        """Record how a claimed trial ended, with kernel, proof and measurement, in one transaction.

        Raises:
            DatabaseError: the trial is not claimed (any more).
        """
        timed, proof = result.measurement, result.verification
        if timed:
            self._check_kind(timed)
        with self.history.writing() as connection:
            claimed = self._held.get(trial_id)
            if claimed is None:
                found = connection.execute(_ONE, {"trial": trial_id, "study": self.id, "state": CLAIMED}).first()
                claimed = (found.configuration, found.started) if found else ("", 0.0)
            configuration, started = claimed
            # A clock that was set back must not end a trial before it began.
            finished = max(self.history.now(), started)
            kernel = result.kernel
            kernel_id = store.add_kernel(connection, kernel, configuration, self._templates) if kernel else None
            row = {
                "trial": trial_id,
                "study": self.id,
                "claimed": CLAIMED,
                "state": DONE,
                "kernel_id": kernel_id,
                "outcome": str(result.outcome),
                "detail": result.detail,
                "pattern": store.failure_pattern(result.detail),
                "seconds": store.plain(result.seconds),
                "finished": finished,
                "score": score(timed.us, timed.ratio) if timed and result.outcome == CORRECT else None,
                "owner_host": None,
                "owner_pid": None,
                "owner_token": None,
            }
            if connection.execute(_FINISH, row).rowcount != 1:
                raise DatabaseError(
                    f"Trial {trial_id} of study {self.id} is not claimed: it is finished, or another process released "
                    f"the claim; let one process own a study."
                )
            if proof:
                store.add_verification(connection, trial_id, proof)
            if timed:
                store.add_measurement(connection, trial_id, timed, final=False, measured=finished)
        self._held.pop(trial_id, None)

    def add_measurement(self, trial_id: int, measurement: MeasurementData, *, final: bool = True) -> None:
        """Append a measurement to a finished trial; the latest final one counts from now on.

        Raises:
            DatabaseError: the study has no such finished trial.
        """
        self._check_kind(measurement)
        with self.history.writing() as connection:
            if connection.execute(_ONE, {"trial": trial_id, "study": self.id, "state": DONE}).first() is None:
                raise DatabaseError(
                    f"Study {self.id} has no finished trial {trial_id}: finish it before measuring again."
                )
            # The latest one counts, also where the clock was set back since the one before.
            last = connection.execute(_LAST_MEASURED, {"trial": trial_id}).scalar()
            measured = self.history.now() if last is None else max(self.history.now(), last + store.TICK)
            store.add_measurement(connection, trial_id, measurement, final=final, measured=measured)
            store.refresh_scores(connection, [trial_id])

    def _check_kind(self, measurement: MeasurementData) -> None:
        """Keep estimates and measurements apart: a study's device gives the one or the other."""
        if measurement.estimated != {"emulator": True, "cuda": False}.get(self.spec.kind, measurement.estimated):
            word = "An estimated" if measurement.estimated else "A measured"
            raise DatabaseError(
                f"{word} time cannot go into study {self.id}, whose device kind is {self.spec.kind}: "
                f"open a study for the device that gave it."
            )

    def release_claims(self, *, force: bool = False) -> int:
        """Drop the claims of dead owners and those this process left open; how many there were.

        Claims from another host count as left behind after an hour. ``force`` drops every claim: for when you know
        that no other process works on the study.
        """
        with self.history.writing() as connection:
            return self._release(connection, own=True, force=force)

    def _release(self, connection: Connection, *, own: bool, force: bool = False) -> int:
        now, me = self.history.now(), this_process()
        gone: list[int] = []
        for trial in connection.execute(_CLAIMS, {"study": self.id}):
            owner = _owner(trial)
            if force or (own and owner == me) or owner.left_behind(trial.started, now):
                gone.append(trial.id)
        if gone:
            connection.execute(delete(m.trial).where(_trial.id.in_(gone)))
        return len(gone)


def _owner(trial: Any) -> Owner:
    return Owner(trial.owner_host or "", trial.owner_pid or 0, trial.owner_token or "")
