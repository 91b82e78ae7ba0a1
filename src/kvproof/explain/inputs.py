"""What is read: a file, standard input or lines that are kept elsewhere, as blocks of whole lines.

Compressed and UTF-16 logs are turned into plain UTF-8 on the way. Only one block is in memory at a time.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..errors import UsageError

BLOCK_BYTES = 1024 * 1024
_LONGEST_LINE_BYTES = 8 * BLOCK_BYTES
_OVERLAP_BYTES = 8 * 1024
_SAMPLE_BYTES = 64 * 1024
_PACKED_BYTES = 8 * 1024
_MOST_CONTROL_RATIO = 0.2
_CONTROL = bytes(b for b in (*range(32), 127) if b not in b"\t\n\v\f\r\b\x1b")
_GZIP = b"\x1f\x8b"
_ARCHIVES = {
    b"PK\x03\x04": "a zip archive", b"\x28\xb5\x2f\xfd": "compressed with zstd", b"\xfd7zXZ\x00": "compressed with xz",
    b"BZh": "compressed with bzip2", b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"\x04\x22\x4d\x18": "compressed with lz4",
}
_WANTED = "expected the text of a log or a metrics page, plain or compressed with gzip"


@dataclass
class Source:
    """One log, wherever it comes from.

    Attributes:
        name: how it is called in the answer.
        chunks: its bytes, from the start, in pieces of any size.
        remarks: what was odd about it, once it was read.
    """

    name: str
    chunks: Callable[[], Iterable[bytes]]
    remarks: list[str] = field(default_factory=list)

    def blocks(self) -> Iterator[bytes]:
        """Its text as blocks of whole lines; only a line of many megabytes is cut, its pieces overlapping.

        Raises:
            UsageError: it is empty, or not text.
        """
        chunks = self._unpacked(iter(self.chunks()))
        sample = b""
        waiting: list[bytes] = []
        for chunk in chunks:
            waiting.append(chunk)
            sample = chunk[:_SAMPLE_BYTES]
            if sample.strip(b"\0"):
                break
        if not sample.strip(b"\0"):
            raise UsageError(f"{self.name}: " + ("nothing but NUL bytes" if sample else "empty") + f", {_WANTED}",
                             tip="check that the server wrote there: docker logs NAME > FILE 2>&1")
        codec = _wide_codec(sample)
        if codec is None and _is_binary(sample):
            raise UsageError(f"{self.name}: binary data, {_WANTED}", tip="save the log as text")
        text = _chained(waiting, chunks)
        return _whole_lines(_as_utf8(text, codec) if codec else text)

    def _unpacked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        first = b""
        for chunk in chunks:
            first += chunk
            if len(first) >= 8:
                break
        for magic, kind in _ARCHIVES.items():
            if first.startswith(magic):
                raise UsageError(f"{self.name}: it is {kind}, {_WANTED}", tip="unpack it first")
        if first.startswith(_GZIP):
            return self._decompressed(_chained([first], chunks))
        if first and self.name.endswith((".gz", ".tgz")):
            raise UsageError(f"{self.name}: named .gz, but it is no gzip archive",
                             tip="rename it, if it is plain text; or fetch it again")
        return _chained([first], chunks)

    def _decompressed(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Members of a gzip file one after the other; one that is cut short gives what it has."""
        unpack, started = zlib.decompressobj(wbits=31), False
        try:
            for packed in _sliced(chunks):
                while packed:
                    if unpack.eof:
                        if not packed.startswith(_GZIP[:1]):  # padding
                            return
                        unpack = zlib.decompressobj(wbits=31)
                    text = unpack.decompress(packed, BLOCK_BYTES)
                    started = started or bool(text)
                    if text:
                        yield text
                    packed = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
        except zlib.error as error:
            if not started:
                raise UsageError(f"{self.name}: starts as gzip does, but cannot be unpacked ({error})",
                                 tip="fetch it again") from None
            self.remarks.append("the gzip archive is damaged; what comes before that was read")
            return
        if not unpack.eof:
            self.remarks.append("the gzip archive ends early; what is there was read")


def from_file(path: Path) -> Source:
    """A log file or a named pipe, opened once it is read."""
    return Source(str(path), lambda: _file(path))


def from_stream(stream: BinaryIO, name: str = "standard input") -> Source:
    """What is piped in."""
    return Source(name, lambda: _pieces(stream, name))


def from_lines(name: str, lines: Iterable[str]) -> Source:
    """Lines that are kept elsewhere, such as in evidence."""
    return Source(name, lambda: [("\n".join(lines)).encode("utf-8", "replace")])


def _file(path: Path) -> Iterator[bytes]:
    try:
        if path.is_dir():
            raise UsageError(f"{path}: a folder, {_WANTED}", tip="name a file in it")
        if path.exists() and not path.is_file() and not path.is_fifo():  # a device may never end
            raise UsageError(f"{path}: a device, {_WANTED}", tip="name a file, or - for standard input")
        stream = path.open("rb", buffering=0)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}",
                         tip="check that it is a file you may read") from None
    yield from _pieces(stream, str(path))


def _pieces(stream: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        with stream:
            while data := stream.read(BLOCK_BYTES):
                yield data
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}", tip="copy it, and try again") from None


def _chained(first: Iterable[bytes], rest: Iterable[bytes]) -> Iterator[bytes]:
    yield from first
    yield from rest


def _sliced(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Small pieces, because what a piece holds before its first damaged byte is lost."""
    for chunk in chunks:
        for at in range(0, len(chunk), _PACKED_BYTES):
            yield chunk[at:at + _PACKED_BYTES]


def _is_binary(sample: bytes) -> bool:
    text = sample.replace(b"\0", b"")
    control = len(text) - len(text.translate(None, _CONTROL))
    broken = text.decode("utf-8", "replace").count("\ufffd")
    # The sample's end may cut a character, and a short paste may have one odd byte.
    return control + broken > max(8, _MOST_CONTROL_RATIO * len(text)) or control + broken == len(text)


def _wide_codec(sample: bytes) -> str | None:
    """UTF-16, as PowerShell's > writes it; None for everything else."""
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    head = sample[:1024]
    odd, even = head[1::2], head[::2]
    if len(head) >= 16 and odd.count(0) > 0.8 * len(odd) and even.count(0) < 0.2 * len(even):
        return "utf-16-le"
    return None


def _as_utf8(chunks: Iterable[bytes], codec: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec)("replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _whole_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            yield rest + chunk[:cut]
            rest = chunk[cut:]
            continue
        rest += chunk
        if len(rest) > _LONGEST_LINE_BYTES:
            yield rest
            rest = rest[-_OVERLAP_BYTES:]
    if rest:
        yield rest
