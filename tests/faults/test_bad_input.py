"""The short form of the tests with bad input. Each parser gets hundreds of mutated inputs and must
refuse them with its own errors.
"""

from __future__ import annotations

import pytest

from tests.faults.fuzz import READERS, Reader, fuzz, fuzz_everything


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_parser_refuses_mutated_input_only_with_its_errors(reader: Reader) -> None:
    """A parser also has to finish within a second."""
    accepted, refused = fuzz(reader, 500, seed=7)
    assert accepted + refused == 500
    assert accepted
    assert refused or not reader.refusals


def test_samples_of_parsers_are_accepted() -> None:
    """If samples were refused, mutations of them would not test the parser."""
    for reader in READERS:
        for sample in reader.samples:
            reader.read(sample)


def test_parser_that_raises_another_error_is_reported_with_input() -> None:
    clumsy = Reader("clumsy", (b"12",), lambda data: int(data.decode()), (UnicodeDecodeError,))
    with pytest.raises(AssertionError, match="clumsy raised ValueError"):
        fuzz(clumsy, 100, seed=1)


def test_every_parser_has_a_row_on_the_page() -> None:
    rows = fuzz_everything(5, seed=2)
    assert [what for what, _, _ in rows] == [f"bad input: {reader.name}" for reader in READERS]
