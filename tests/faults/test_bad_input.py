"""Bad input, short form: hundreds of mutations for each reader, refused in its own words."""

from __future__ import annotations

import pytest

from tests.faults.fuzz import READERS, Reader, fuzz, fuzz_everything


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_reader_refuses_bad_input_in_its_own_words(reader: Reader) -> None:
    """It returns or raises its documented error; nothing else, and in no time."""
    accepted, refused = fuzz(reader, 500, seed=7)
    assert accepted + refused == 500
    assert accepted
    assert refused or not reader.refusals


def test_the_samples_themselves_are_accepted() -> None:
    """Or the mutations would prove nothing."""
    for reader in READERS:
        for sample in reader.samples:
            reader.read(sample)


def test_a_reader_that_raises_anything_else_is_found_out() -> None:
    """A finding names the input."""
    clumsy = Reader("clumsy", (b"12",), lambda data: int(data.decode()), (UnicodeDecodeError,))
    with pytest.raises(AssertionError, match="clumsy raised ValueError"):
        fuzz(clumsy, 100, seed=1)


def test_every_reader_is_a_row() -> None:
    """The page counts them all."""
    rows = fuzz_everything(5, seed=2)
    assert [what for what, _, _ in rows] == [f"bad input: {reader.name}" for reader in READERS]
