"""What kind of binary file begins with which bytes. Only what a model may be asked about."""

from __future__ import annotations

_STARTS = (
    (b"\x7fELF", "ELF program or library"),
    (b"MZ", "Windows program or library"),
    (b"\xcf\xfa\xed\xfe", "Mach-O program or library"),
    (b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (b"\0asm", "WebAssembly module"),
    (b"%PDF-1.", "PDF document"),
    (b"%PDF-2.", "PDF document"),
    (b"PK\x03\x04", "zip archive, or a document in one"),
    (b"\x1f\x8b", "gzip archive"),
    (b"BZh", "bzip2 archive"),
    (b"\xfd7zXZ\0", "xz archive"),
    (b"\x28\xb5\x2f\xfd", "zstd archive"),
    (b"7z\xbc\xaf\x27\x1c", "7-zip archive"),
    (b"!<arch>\n", "ar archive"),
    (b"SQLite format 3\0", "SQLite database"),
    (b"PACK\0\0\0", "git pack"),
    (b"BM", "BMP image"),
    (b"II*\0", "TIFF image"),
    (b"MM\0*", "TIFF image"),
    (b"\0\0\x01\0", "icon"),
    (b"OggS\0", "Ogg media"),
    (b"fLaC\0", "FLAC audio"),
    (b"fLaC\x80", "FLAC audio"),
    (b"ID3", "MP3 audio"),
    (b"\x1aE\xdf\xa3", "Matroska or WebM video"),
    (b"wOF2\0\1\0\0", "font"),
    (b"wOF2OTTO", "font"),
    (b"\0\x01\0\0\0", "font"),
)
_INNER = (
    (257, b"ustar", "tar archive"),
    (4, b"ftyp", "MP4 media, or a HEIF or AVIF image"),
    (8, b"WAVEfmt ", "WAV audio"),
    (8, b"AVI LIST", "AVI video"),
)
#: Those that are as long are binary whatever follows. Of the others the first letters could begin a text.
_CERTAIN_BYTES = 4


def kind_of(start: bytes) -> str | None:
    """Return the kind of a binary file that begins so; None if it is not known."""
    for magic, kind in _STARTS:
        if start.startswith(magic):
            return kind
    for offset, magic, kind in _INNER:
        if start[offset : offset + len(magic)] == magic:
            return kind
    return None


def is_surely_binary(start: bytes) -> bool:
    """Tell if a file is binary by its first bytes alone, although it may look like text further on."""
    return any(len(magic) >= _CERTAIN_BYTES and start.startswith(magic) for magic, _ in _STARTS)
