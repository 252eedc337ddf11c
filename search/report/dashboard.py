"""A study handed to optuna-dashboard: in a web server on this machine, or as a file for another time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from optuna.storages import BaseStorage, InMemoryStorage

from gemmtune.search.report.as_optuna import study_of
from gemmtune.search.report.material import Material
from gemmtune.space.errors import DatabaseError, SettingError, ToolchainError


def hand_over(materials: Sequence[Material], storage: BaseStorage | None = None) -> BaseStorage:
    """The studies as Optuna's, in ``storage`` or in memory; each has a note that names the winner, with its source.

    Raises:
        ToolchainError: optuna-dashboard is not installed.
    """
    note = _dashboard("save_note")
    storage = storage or InMemoryStorage()
    for material in materials:
        study = study_of(material, storage)
        if (winner := material.winner) is not None:
            number = material.trials.index(winner)
            source = f"\n\n```cuda\n{winner.source}\n```" if winner.source else ""
            note(study, f"The winner is trial {number}: `{winner.configuration}`{source}")
    return storage


def write_storage(materials: Sequence[Material], path: str | Path) -> None:
    """Write the studies as a new SQLite file of Optuna's, which ``optuna-dashboard sqlite:///FILE`` opens.

    Raises:
        ToolchainError: optuna-dashboard is not installed.
        DatabaseError: there is a file already, or it cannot be written.
    """
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    target = Path(path)
    if target.exists():
        raise DatabaseError(f"The file {target} is there already: name a new one, since studies would be there twice.")
    try:
        hand_over(materials, RDBStorage(f"sqlite:///{target}"))
    except (StorageInternalError, SQLAlchemyError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DatabaseError(f"The file {target} cannot be written ({reason}): choose another place.") from None


def server(storage: BaseStorage, host: str, port: int) -> WSGIServer:
    """A web server with the dashboard; its ``serve_forever`` answers until ``shutdown``. Port 0 takes a free one.

    Raises:
        ToolchainError: optuna-dashboard is not installed.
        SettingError: the address cannot be listened on.
    """
    application = _dashboard("wsgi")(storage)
    try:
        return make_server(host, port, application, handler_class=_Quiet)
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"Nothing can listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): "
            f"choose another --port or --host."
        ) from None


class _Quiet(WSGIRequestHandler):
    """Answers without a line for each request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


def _dashboard(name: str) -> Callable[..., Any]:
    try:
        import optuna_dashboard
    except ImportError:
        raise ToolchainError(
            "The dashboard needs optuna-dashboard, which is not installed: run pip install 'gemmtune[dashboard]'."
        ) from None
    found: Callable[..., Any] = getattr(optuna_dashboard, name)
    return found
