"""Configurations: one line of text that reads back, equal whatever the order of the knobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmtune.space.configuration import Configuration, Value
from gemmtune.space.errors import ConfigurationError

WORDS = st.from_regex(r"\A[a-z][a-z0-9_]{0,6}\Z", alphabet=st.characters(codec="ascii"))
KNOBS = st.dictionaries(WORDS, st.one_of(st.integers(-9, 4096), WORDS), max_size=6)


@given(WORDS, KNOBS)
def test_text_reads_back(family: str, values: dict[str, Value]) -> None:
    c = Configuration.of(family, values)
    back = Configuration.parse(str(c))
    assert back == c
    assert list(back.items()) == list(values.items())
    assert Configuration.parse(c.key) == c


@given(WORDS, KNOBS, st.randoms())
def test_order_of_knobs_does_not_matter(family: str, values: dict[str, Value], random: object) -> None:
    items = list(values.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    a, b = Configuration.of(family, values), Configuration.of(family, dict(items))
    assert a == b
    assert hash(a) == hash(b)
    assert a.key == b.key


def test_is_a_mapping() -> None:
    c = Configuration.parse("simt bm=64 layout=nt")
    assert dict(c) == {"bm": 64, "layout": "nt"}
    assert "bm" in c
    assert "bn" not in c
    assert c.integer("bm") == 64
    with pytest.raises(KeyError):
        c["bn"]
    with pytest.raises(ConfigurationError, match="layout"):
        c.integer("layout")


def test_differs_by_family_and_value() -> None:
    c = Configuration.parse("simt bm=64")
    assert c != Configuration.parse("mma bm=64")
    assert c != Configuration.parse("simt bm=65")
    assert c != "simt bm=64"


@pytest.mark.parametrize("text", ["", "   ", "bm=1", "simt bm", "simt bm=", "simt =4", "simt bm=1 bm=2", "simt bm 1"])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="knob=value"):
        Configuration.parse(text)
