"""Create thumbnails of pictures and read their metadata with Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
_LARGEST = (256, 256)
"""The maximum width and height of a thumbnail in pixels. As PNG, this is some tens of kilobytes."""
_LONGEST = 200
"""The maximum number of characters of a tag. Longer tags contain binary data."""
_MOST_TAGS = 60
"""The maximum number of tags. Cameras write about forty. A malicious file may have thousands."""


class HopelessFile(Exception):
    """The file cannot be processed, so a retry would fail as well."""


class BrokenPicture(Exception):
    """The file starts like a picture, but its data is invalid."""


@contextmanager
def _opened(content: bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open a picture without decoding it. Raises HopelessFile if decoding would need too much
    memory.
    """
    try:
        picture = Image.open(io.BytesIO(content), formats=_FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise HopelessFile(f"expected at most {max_pixels} pixels, got far more: {bomb}") from bomb
    except UnidentifiedImageError:
        raise BrokenPicture(
            "Pillow finds no picture in it"
        ) from None  # its text mentions an internal object
    with picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise HopelessFile(f"expected at most {max_pixels} pixels, got {width} × {height}")
        yield picture


def thumbnail_of(content: bytes, max_pixels: int) -> tuple[bytes, int, int]:
    """Return a thumbnail as PNG with its width and height. It is rotated as the EXIF data
    specifies.
    """
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
    """Return format, dimensions, number of frames and EXIF data. Broken pixels don't matter,
    because only the header is read.
    """
    with _opened(content, max_pixels) as picture:
        try:
            frames = int(getattr(picture, "n_frames", 1))
        except Exception:  # the rest of the file, which is read for this, may be broken
            frames = 1
        try:
            tags = dict(picture.getexif())
        except Exception:  # a file with invalid tags is still accepted
            tags = {}
        # Keep the tags with a known name and shorten their values.
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
