"""Server-sent events: a byte stream split into the data of its events. Does no I/O."""

from __future__ import annotations

from zot.errors import StreamBroken

_BOM = b"\xef\xbb\xbf"
_LF = 0x0A  # `in` is several times faster for a number than for bytes.
_DATA = b"data: "
#: Longest event name that the fast path recognises.
_NAME_BYTES = 128
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class SseParser:
    """Incremental parser of server-sent events. Lines may end in LF, CRLF or CR, split anywhere."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._after_cr = False
        #: The usual prefix of an event, up to its data.
        self._usual = _DATA

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that ``data`` completes; events without data are skipped."""
        if self._at_start:
            data = self._without_bom(data)
        if self._after_cr or b"\r" in data:
            data = self._with_lf_only(data)
        if not self._may_complete(data):
            self._keep(data)
            return []
        whole, _, rest = b"".join([*self._pieces, data]).rpartition(b"\n\n")
        self._pieces, self._size = [], 0
        self._keep(rest)
        return self._payloads(whole)

    def _payloads(self, whole: bytes) -> list[bytes]:
        """Return the data of whole events. Nearly always all have the same prefix: then one split suffices."""
        usual = self._usual
        if whole.startswith(usual):
            alike = whole[len(usual) :].split(b"\n\n" + usual)
            # Exactly the line ends around the data: none inside it, and no other fields in between.
            if whole.count(b"\n") == len(alike) * (usual.count(b"\n") + 2) - 2:
                return alike
        middle = whole.rfind(b"\n\n", 0, len(whole) // 2) + 1
        self._usual = usual = _beginning(whole[middle : middle + _NAME_BYTES].lstrip(b"\n"))
        first, *others = whole.split(b"\n\n" + usual)
        found = _payloads(first)
        for other in others:
            if _LF in other:
                found += _payloads(usual + other)
            else:
                found.append(other)
        return found

    def _may_complete(self, data: bytes) -> bool:
        return b"\n\n" in data or (data.startswith(b"\n") and bool(self._pieces) and self._pieces[-1].endswith(b"\n"))

    def _keep(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)
            self._size += len(data)
            if self._size > _MAX_EVENT_BYTES:
                raise StreamBroken(f"one event of the stream is longer than {_MAX_EVENT_BYTES} bytes")

    def _without_bom(self, data: bytes) -> bytes:
        data = b"".join([*self._pieces, data])
        self._pieces, self._size = [], 0
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._keep(data)
            return b""
        self._at_start = False
        return data.removeprefix(_BOM)

    def _with_lf_only(self, data: bytes) -> bytes:
        # A CR ends its line at once; an LF right after it, even in the next bytes, belongs to the same line end.
        if self._after_cr and data:
            data, self._after_cr = data.removeprefix(b"\n"), False
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _beginning(block: bytes) -> bytes:
    """Return the prefix of an event, up to its data; its neighbours nearly always share it."""
    name, end, rest = block.partition(b"\n")
    return name + end + _DATA if name.startswith(b"event: ") and rest.startswith(_DATA) else _DATA


def _payloads(events: bytes) -> list[bytes]:
    """Return the data of whole events of any form."""
    return [payload for block in events.split(b"\n\n") if (payload := _payload(block)) is not None]


def _payload(block: bytes) -> bytes | None:
    """Return the data of one event; None if it has none."""
    found: list[bytes] = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found) if found else None
