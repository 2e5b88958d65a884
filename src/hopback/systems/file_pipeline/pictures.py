"""Thumbnails and metadata of pictures, by Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_LARGEST = (256, 256)
"""Maximum width and height of a thumbnail in pixels: some tens of kilobytes as PNG."""
_LONGEST = 200
"""Maximum characters of one tag. Longer tags contain binary data."""
_MOST_TAGS = 60
"""Maximum number of tags. A camera writes about forty, a hostile file thousands."""


class HopelessFile(Exception):
    """The file can never be processed. A retry would fail again."""


class BrokenPicture(Exception):
    """A file with the header of a picture and invalid data."""


@contextmanager
def _opened(content: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Return the picture, not decoded yet. Raises HopelessFile if decoding needs too much memory."""
    try:
        picture = Image.open(io.BytesIO(content), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise HopelessFile(f"expected at most {max_pixels} pixels, got far more: {bomb}") from bomb
    except UnidentifiedImageError:
        raise BrokenPicture(
            "Pillow finds no picture in it"
        ) from None  # its text contains an internal object
    with picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise HopelessFile(f"expected at most {max_pixels} pixels, got {width} × {height}")
        yield picture


def thumbnail_of(content: bytes, max_pixels: int) -> tuple[bytes, int, int]:
    """Return an upright thumbnail as PNG, with its width and height."""
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
    """Return format, dimensions, frames and EXIF. Only the header is read, so broken pixels are ignored."""
    with _opened(content, max_pixels) as picture:
        try:
            frames = int(getattr(picture, "n_frames", 1))
        except Exception:  # counting frames reads the rest, which may be broken
            frames = 1
        try:
            tags = dict(picture.getexif())
        except Exception:  # invalid tags are not an error of the file
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
