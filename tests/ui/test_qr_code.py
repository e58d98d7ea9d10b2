"""QR codes, decoded by an independent program."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands.test_web import scanned
from optional import needs
from zot.errors import UserError
from zot.ui.qr_code import matrix, rendered


@needs("zbarimg")
@pytest.mark.parametrize("size", [1, 17, 18, 53, 78, 134, 192, 271])
def test_a_scanner_reads_codes_of_every_size(tmp_path: Path, size: int) -> None:
    text = ("https://box.example/web/#pair=AbC-_~" * 20)[:size]
    assert scanned(rendered(matrix(text)).split("\n"), tmp_path / "code.pgm") == text


def test_a_text_that_does_not_fit_is_refused() -> None:
    matrix("x" * 271)
    with pytest.raises(UserError, match="271 bytes at most"):
        matrix("x" * 272)
