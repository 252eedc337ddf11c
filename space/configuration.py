"""Parameters (the knobs of a family) and configurations (one value for each knob)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gemmtune.space.errors import ConfigurationError

Value = int | str


@dataclass(frozen=True)
class Parameter:
    """One knob: its name, the values it may take (integers or short words), and one line on what it does."""

    name: str
    values: tuple[Value, ...]
    doc: str = ""


@dataclass(frozen=True)
class Configuration(Mapping[str, Value]):
    """One value for each knob of one family: frozen, hashable, printable in one line.

    ``str(c)`` gives ``"mma bm=128 bn=128 ..."`` in the family's own order of knobs and :meth:`parse` reads it back.
    Equality does not depend on that order.
    """

    family: str
    items_: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, family: str, values: Mapping[str, Value]) -> Configuration:
        """The configuration of ``family`` with ``values``, in their order."""
        return cls(family, tuple(values.items()))

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Read ``"family knob=value ..."`` back.

        Raises:
            ConfigurationError: the text is empty, or a word after the first is not ``knob=value``.
        """
        words = text.split()
        if not words or "=" in words[0]:
            raise ConfigurationError(
                f"Configuration {text!r} does not start with its family: write it as 'family knob=value ...'."
            )
        values: dict[str, Value] = {}
        for word in words[1:]:
            name, sep, value = word.partition("=")
            if not sep or not name or not value or name in values:
                raise ConfigurationError(
                    f"Configuration {text!r} has the word {word!r}: write each knob once, as knob=value."
                )
            try:
                values[name] = int(value)
            except ValueError:
                values[name] = value
        return cls.of(words[0], values)

    def __getitem__(self, name: str) -> Value:
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def integer(self, name: str) -> int:
        """The value of an integer knob."""
        value = self[name]
        if not isinstance(value, int):
            raise ConfigurationError(f"Knob {name} of {self.family} must be an integer, but is {value!r}.")
        return value

    @property
    def key(self) -> str:
        """A canonical text, independent of the knobs' order: what the database and caches compare."""
        return " ".join([self.family, *(f"{k}={v}" for k, v in sorted(self.items_))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return " ".join([self.family, *(f"{k}={v}" for k, v in self.items_)])
