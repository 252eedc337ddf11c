"""A study as a page that anyone can open, and as a study of Optuna's."""

from gemmtune.search.report.page import write_report

__all__ = ["write_report"]
