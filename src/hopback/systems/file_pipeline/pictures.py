"""Pictures, by Pillow: small ones of large ones, and what they tell about themselves."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hopback.systems.file_pipeline.stages import HopelessFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_LARGEST = (256, 256)
"""Pixels of a thumbnail: fit for a list of files, and some tens of kilobytes as PNG."""
_LONGEST = 200
"""Characters of one tag: more is no name and no number but data."""
_MOST_TAGS = 60
"""A camera writes some forty; a hostile file thousands."""


class BrokenPicture(Exception):
    """A file with the head of a picture and nothing that could be one behind it."""


@contextmanager
def _opened(content: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """The picture, not decoded yet. Hopeless if decoding it would take too much memory."""
    try:
        picture = Image.open(io.BytesIO(content), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise HopelessFile(f"expected at most {max_pixels} pixels, got far more: {bomb}") from bomb
    except UnidentifiedImageError:
        raise BrokenPicture(
            "Pillow finds no picture in it"
        ) from None  # its own words name an object of ours
    with picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise HopelessFile(f"expected at most {max_pixels} pixels, got {width} × {height}")
        yield picture


def thumbnail_of(content: bytes, max_pixels: int) -> tuple[bytes, int, int]:
    """A small picture as PNG, with its width and height; the right side up."""
    with _opened(content, max_pixels) as picture:
        picture.draft("RGB", (_LARGEST[0] * 2, _LARGEST[1] * 2))
        upright = ImageOps.exif_transpose(picture)
        if upright.mode not in ("RGB", "RGBA", "L", "LA"):
            upright = upright.convert("RGBA")
        upright.thumbnail(_LARGEST)
        target = io.BytesIO()
        upright.save(target, "PNG")
        return target.getvalue(), upright.width, upright.height


def describe_picture(content: bytes, max_pixels: int) -> dict[str, Any]:
    """Format, dimensions, frames and EXIF. Only the head is read: broken pixels do not matter."""
    with _opened(content, max_pixels) as picture:
        try:
            frames = int(getattr(picture, "n_frames", 1))
        except Exception:  # counting frames reads on, and the rest may be broken
            frames = 1
        try:
            tags = dict(picture.getexif())
        except Exception:  # what a hostile file makes of its tags is not our failure
            tags = {}
        # The named tags as short text.
        named = ((ExifTags.TAGS.get(tag), value) for tag, value in tags.items())
        exif = {name: str(value)[:_LONGEST].replace("\x00", "") for name, value in named if name}
        return {
            "format": picture.format,
            "width": picture.width,
            "height": picture.height,
            "mode": picture.mode,
            "frames": frames,
            "exif": dict(list(exif.items())[:_MOST_TAGS]),
        }
