"""What a browser has made of a page: the text of a PDF, and the colours of a PNG."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

Colour = tuple[int, int, int]

_STREAM = re.compile(rb"/Filter /FlateDecode\s*/Length (\d+)\s*>> stream\n")
# In the table of a font: a glyph is a character, or some glyphs in a row are characters in a row.
_GLYPH = re.compile(rb"^<([0-9A-F]{4})> <([0-9A-F]{4})>$", re.MULTILINE)
_GLYPHS = re.compile(rb"^<([0-9A-F]{4})> <([0-9A-F]{4})> <([0-9A-F]{4})>$", re.MULTILINE)
_SHOWN = re.compile(rb"<([0-9A-F]+)> Tj")


def text_of(pdf: bytes) -> str:
    """The text that Chromium has printed into a PDF, of fonts that number their glyphs alike."""
    streams = [
        zlib.decompress(pdf[found.end() : found.end() + int(found[1])]) for found in _STREAM.finditer(pdf)
    ]
    characters: dict[int, str] = {}
    for table in (stream for stream in streams if b"beginbf" in stream):
        for glyph, character in _GLYPH.findall(table):
            characters[int(glyph, 16)] = chr(int(character, 16))
        for first, last, character in _GLYPHS.findall(table):
            glyphs = range(int(first, 16), int(last, 16) + 1)
            characters.update((glyph, chr(int(character, 16) + n)) for n, glyph in enumerate(glyphs))
    lines = []
    for shown in (line for stream in streams for line in _SHOWN.findall(stream)):
        glyphs_shown = struct.unpack(f">{len(shown) // 4}H", bytes.fromhex(shown.decode()))
        lines.append("".join(characters.get(glyph, "?") for glyph in glyphs_shown))
    return "\n".join(lines)


def colours_of(png: bytes) -> dict[Colour, int]:
    """How many pixels a PNG of eight bits a colour, without transparency, has of each."""
    width, _, depth, kind, *_, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, kind, interlaced) == (8, 2, 0)
    counts: dict[Colour, int] = {}
    for row in _rows(zlib.decompress(b"".join(_chunks(png, b"IDAT"))), 3 * width):
        for red, green, blue in zip(row[::3], row[1::3], row[2::3], strict=True):
            counts[red, green, blue] = counts.get((red, green, blue), 0) + 1
    return counts


def _chunks(png: bytes, wanted: bytes) -> Iterator[bytes]:
    at = 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == wanted:
            yield png[at + 8 : at + 8 + length]
        at += 12 + length


def _rows(data: bytes, length: int) -> Iterator[bytearray]:
    """Each row with its filter undone: a byte is told from those to its left, above, and above that one."""
    above = bytearray(length)
    for start in range(0, len(data), length + 1):
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + length])
        if kind == 2:
            row = bytearray((byte + up) & 255 for byte, up in zip(row, above, strict=True))
        elif kind:
            for at, byte in enumerate(row):
                left, corner = (row[at - 3], above[at - 3]) if at >= 3 else (0, 0)
                row[at] = (byte + _told(kind, left, above[at], corner)) & 255
        yield row
        above = row


def _told(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 1:
        return left
    if kind == 3:
        return (left + up) // 2
    guess = left + up - corner
    return min((left, up, corner), key=lambda byte: abs(guess - byte))
