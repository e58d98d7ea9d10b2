"""The daemon's own log, one line for each thing that it has to say."""

from __future__ import annotations

import logging

from zot.messages import timestamp
from zot.serve.daemon.logs import LogFile
from zot.text import printable


class LogHandler(logging.Handler):
    """Writes what is logged to a file. Lines that could not be written are counted, and told when it is possible."""

    def __init__(self, file: LogFile) -> None:
        super().__init__()
        self._file = file
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Never raises: what cannot be written is no reason to stop."""
        line = self._line(record).encode("utf-8", "backslashreplace")
        if self._lost:
            line = f"{timestamp()} WARNING {self._lost} lines could not be written\n".encode() + line
        self._lost = 0 if self._file.append(line) else self._lost + 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            text = record.getMessage()
        except Exception as problem:  # A mistake in a format, or in anything that it shows: whoever logs must not fail.
            text = f"{record.msg if isinstance(record.msg, str) else '?'}: cannot be shown: {type(problem).__name__}"
        lines = [f"{timestamp(record.created)} {record.levelname} {printable(text)}"]
        if record.exc_info and record.exc_info[0] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            lines += [f"    {printable(line)}" for line in trace.split("\n")]
        return "\n".join(lines) + "\n"
