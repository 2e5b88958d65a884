"""Text of unknown origin made safe to show, on a terminal, in a log, on a page; and text by a pattern.

A message of a producer may hold escape sequences that a terminal obeys, marks that reorder or hide text,
and characters that nobody sees. Each place shows them in its own way; what is unsafe is said here, once.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["escape_unsafe", "one_line", "printable", "safe_lines", "text_matches", "visible"]

# C0 and C1 controls, DEL, and the marks that reorder or hide text.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
_JOINER = "\u200d"
# What may stand between a picture and the joiner: the sign for colour, and the tones of skin.
_EMOJI_SUFFIXES = "\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
# What Unicode calls control, format, private, surrogate, line and paragraph separator.
_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def one_line(text: str) -> str:
    """For a terminal or a log: on one line, with every control character replaced by a visible sign."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def safe_lines(text: str) -> str:
    """As `one_line`, but its lines stay lines."""
    return "\n".join(map(one_line, text.split("\n")))


def escape_unsafe(json_text: str) -> str:
    """For JSON on one line: what a terminal would obey is escaped, so nothing is lost."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", json_text)


def printable(text: str) -> str:
    """For a name in a sentence: every control and other unprintable character as Python escapes it."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def visible(text: str, *, lines: bool = False) -> str:
    """For a page: everything invisible spelled out; `lines` keeps line ends and tabs."""
    kept = "\n\t" if lines else ""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each
        if each in kept or unicodedata.category(each) not in _INVISIBLE or _joins(text, place)
        else _named(each)
        for place, each in enumerate(text)
    )


def _joins(text: str, place: int) -> bool:
    """Whether a joiner stands within one emoji, as in a family: then it is part of what is seen."""
    if text[place] != _JOINER or not 0 < place < len(text) - 1:
        return False
    before, after = text[place - 1], text[place + 1]
    return _is_pictorial(after) and (_is_pictorial(before) or before in _EMOJI_SUFFIXES)


def _is_pictorial(character: str) -> bool:
    return unicodedata.category(character) == "So"


def _named(character: str) -> str:
    """A picture for ASCII controls, the code point for the rest."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def text_matches(pattern: str, text: str) -> bool:
    """Whether the text is the pattern, in which `*` stands for any characters; in linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    last = rest.pop()
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    position, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, position, end)
        if found < 0:
            return False
        position = found + len(part)
    return True
