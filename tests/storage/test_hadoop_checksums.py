"""Checksums of Hadoop's local file system: none may exist next to other content."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.errors import UnavailableError
from lakelog.storage.local import LocalStore

_STALE = b"crc\x00\x00\x00\x02\x00\x00\x00\x00\x00"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "log").mkdir()
    return LocalStore(str(tmp_path))


def _with_checksum(root: Path, name: str, content: bytes | None = b"old") -> Path:
    """A file with a checksum, or the checksum alone."""
    file = root / "log" / name
    if content is not None:
        file.write_bytes(content)
    checksum = root / "log" / f".{name}.crc"
    checksum.write_bytes(_STALE)
    return checksum


def _upload(store: LocalStore) -> None:
    with store.upload("log/x") as upload:
        upload.write(b"new")


def _move(store: LocalStore) -> None:
    store.put("log/y", b"new")
    store.move("log/y", "log/x")


_WRITERS: dict[str, tuple[bytes | None, Callable[[LocalStore], object]]] = {
    "put_if_absent": (None, lambda store: store.put_if_absent("log/x", b"new")),
    "put": (b"old", lambda store: store.put("log/x", b"new")),
    "upload": (b"old", _upload),
    "move": (b"old", _move),
}


@pytest.mark.parametrize("way", _WRITERS)
def test_checksum_is_deleted_before_its_file_is_replaced(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    before, write = _WRITERS[way]
    checksum = _with_checksum(tmp_path, "x", before)
    seen: list[tuple[str, bool]] = []
    calls = {name: getattr(os, name) for name in ("replace", "link", "fsync")}

    def observe(name: str) -> None:
        def observed(*args: object, **more: object) -> None:
            seen.append((name, checksum.exists()))
            calls[name](*args, **more)

        monkeypatch.setattr(os, name, observed)

    for name in calls:
        observe(name)
    write(store)
    assert (tmp_path / "log/x").read_bytes() == b"new"
    assert not checksum.exists()
    named = [n for n, (call, _) in enumerate(seen) if call in {"replace", "link"}][-1]
    assert not seen[named][1]
    assert ("fsync", False) in seen[:named], "a crash could keep the checksum and the new content"


def test_move_leaves_no_checksum_under_the_old_name(store: LocalStore, tmp_path: Path) -> None:
    checksum = _with_checksum(tmp_path, "x")
    store.move("log/x", "log/z")
    assert sorted(os.listdir(tmp_path / "log")) == ["z"]
    assert not checksum.exists()


@pytest.mark.parametrize("many", [False, True])
def test_a_deleted_file_leaves_no_checksum(store: LocalStore, tmp_path: Path, many: bool) -> None:
    for name in ("x", "y"):
        _with_checksum(tmp_path, name)
    if many:
        assert store.delete_many(["log/x", "log/y"]) == []
    else:
        store.delete("log/x")
        store.delete("log/y")
    assert os.listdir(tmp_path / "log") == []


def test_existing_file_keeps_its_checksum(store: LocalStore, tmp_path: Path) -> None:
    checksum = _with_checksum(tmp_path, "x")
    assert not store.put_if_absent("log/x", b"new")
    assert checksum.read_bytes() == _STALE


def test_only_a_regular_file_with_the_exact_checksum_name_is_deleted(
    store: LocalStore, tmp_path: Path
) -> None:
    folder = tmp_path / "log"
    kept = tmp_path / "elsewhere"
    kept.write_bytes(b"kept")
    (folder / ".x.crc").symlink_to(kept)
    (folder / ".y.crc").mkdir()
    others = ("x.crc", ".x.crc.crc", ".xx.crc", ".x.CRC", "..x.crc", ".x.crc~")
    for name in others:
        (folder / name).write_bytes(b"kept")
    for name in ("x", "y"):
        store.put(f"log/{name}", b"new")
        store.delete(f"log/{name}")
    assert sorted(os.listdir(folder)) == sorted((*others, ".x.crc", ".y.crc"))
    assert kept.read_bytes() == b"kept"


def test_file_whose_name_is_too_long_for_a_checksum_is_written_and_deleted(
    store: LocalStore,
) -> None:
    name = f"log/{'n' * 255}"
    assert store.put_if_absent(name, b"a")
    store.put(name, b"b")
    store.delete(name)
    assert store.stat(name) is None


def test_a_checksum_that_cannot_be_deleted_keeps_the_old_content(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = _with_checksum(tmp_path, "x")
    unlink = os.unlink

    def refused(path: str, **more: int) -> None:
        if path == str(checksum):
            raise PermissionError(1, "no", path)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(UnavailableError):
        store.put("log/x", b"new")
    with pytest.raises(UnavailableError):
        store.delete("log/x")
    assert (tmp_path / "log/x").read_bytes() == b"old"
