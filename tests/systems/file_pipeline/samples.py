"""Files to upload: valid, broken and hostile ones."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

__all__ = ["bomb", "broken_png", "gif", "jpeg_with_exif", "png"]

_MAGIC = b"\x89PNG\r\n\x1a\n"


def png(width: int = 64, height: int = 48) -> bytes:
    """Return a picture."""
    target = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(target, "PNG")
    return target.getvalue()


def gif() -> bytes:
    """Return a picture with a palette and two frames."""
    target = io.BytesIO()
    first, second = (Image.new("RGB", (20, 10), shade).convert("P") for shade in ("red", "blue"))
    first.save(target, "GIF", save_all=True, append_images=[second])
    return target.getvalue()


def jpeg_with_exif() -> bytes:
    """Return a picture with a camera name and a rotated orientation."""
    target = io.BytesIO()
    exif = Image.Exif()
    exif[0x010F] = "Hopback Optics"
    exif[0x0112] = 6
    Image.new("RGB", (400, 200), (10, 90, 200)).save(target, "JPEG", exif=exif)
    return target.getvalue()


def broken_png() -> bytes:
    """Return a picture with a valid header and pixels that Pillow cannot decode."""
    return _png(64, 64, b"no compressed pixels at all")


def bomb(side: int = 30_000) -> bytes:
    """Return a few bytes that decode to gigabytes."""
    return _png(side, side, zlib.compress(b"\x00" * 1000))


def _png(width: int, height: int, pixels: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return _MAGIC + _chunk(b"IHDR", head) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", crc)
