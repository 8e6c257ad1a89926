"""Data that exceeds memory is read back unchanged, and leaves no files on disk."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import CheckpointWriteError
from lakelog.storage.scratch import ScratchFile


def test_data_is_read_back_in_any_order_by_several_threads() -> None:
    file = ScratchFile()
    texts = [bytes([n]) * (n * 997 % 5000) for n in range(200)]
    places = [file.append(text, "texts") for text in texts]
    assert file.size_bytes == sum(map(len, texts))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(file.read, reversed(places))) == texts[::-1]
    file.close()
    file.close()
    assert file.size_bytes == 0


def test_failed_append_does_not_affect_other_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = ScratchFile(CheckpointWriteError, "wait")
    before = file.append(b"before", "rows")
    whole: Any = file._file

    class HalfFull:
        def write(self, data: memoryview) -> int:
            whole.write(data[:3])
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

    with monkeypatch.context() as patch:
        patch.setattr(file, "_file", HalfFull())
        with pytest.raises(CheckpointWriteError, match=r"^rows .* No space left") as caught:
            file.append(b"lost", "rows")
    assert "or wait" in (caught.value.hint or "")
    after = file.append(b"after", "rows")
    assert (file.read(before), file.read(after)) == (b"before", b"after")
    file.close()


def test_scratch_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = ScratchFile()
    file.append(b"bytes", "rows")
    assert list(tmp_path.iterdir()) == []
    file.close()
