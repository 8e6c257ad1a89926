"""Files outside a table's folder: rejected by default, opened according to `allow_external`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.data.file_opening import Sources
from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.errors import ExternalPathError, InvalidInputError, UnavailableError
from lakelog.storage import bounded, open_store
from lakelog.storage.containment import AllowedLocations, External
from tests.data.rows import data_file, snapshot_of
from tests.data.vector_writer import vector_file
from tests.handmade import Handmade, add, field, metadata, protocol

NUMBERS = (field("n"),)


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def table_with(folder: Path, path: str, **more: Any) -> lakelog.Table:
    """A table with its own file (9), and one (1) to which its log refers by `path`."""
    own = data_file(folder, "own.parquet", numbers(9))
    other = data_file(folder.parent / "elsewhere", "x.parquet", numbers(1))
    other["add"]["path"] = path
    snapshot_of(folder, NUMBERS, other, own)
    return lakelog.open(folder, **more)


def read(table: lakelog.Table) -> list[int]:
    return sorted(table.snapshot().scan().collect()["n"].to_list())


OUTSIDE: list[Callable[[Path], str]] = [
    lambda elsewhere: f"{elsewhere}/x.parquet",
    lambda elsewhere: f"/{elsewhere}/x.parquet",
    lambda elsewhere: f"file:{elsewhere}/x.parquet",
    lambda elsewhere: f"file://{elsewhere}/x.parquet",
    lambda elsewhere: f"FILE://localhost{elsewhere}/./x.parquet",
]


@pytest.mark.parametrize("spell", OUTSIDE)
def test_external_file_is_listed_and_opened_only_if_allowed(
    tmp_path: Path, spell: Callable[[Path], str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    path = spell(elsewhere)
    table = table_with(tmp_path / "table", path)
    assert sorted(table.snapshot().files().collect()["path"]) == sorted([path, "own.parquet"])
    assert table.blame(path).height == 1
    with pytest.raises(ExternalPathError, match="allow_external") as refused:
        read(table)
    assert refused.value.path == path
    assert refused.value.expected == f"a file below {tmp_path / 'table'}"
    assert refused.value.version == 0
    with pytest.raises(ExternalPathError):
        table.overwrite(pl.DataFrame({"n": [5]}), where=pl.col("n") > 8)
    location = tmp_path / "table"
    allowed: Any
    for allowed in (True, elsewhere, [str(elsewhere)], [f"file://{elsewhere}/"], ["/"]):
        assert read(lakelog.open(location, allow_external=allowed)) == [1, 9]
    for other in (
        [],
        [tmp_path / "else"],
        [elsewhere / "x"],
        ["s3://elsewhere"],
        [f"{elsewhere}2"],
    ):
        with pytest.raises(ExternalPathError):
            read(lakelog.open(location, allow_external=other))


@pytest.mark.parametrize(
    "path",
    [
        "../elsewhere/x.parquet",
        "a/../../elsewhere/x.parquet",
        "%2e%2e/elsewhere/x.parquet",
        "%2E./elsewhere/x.parquet",
        "..%2Felsewhere/x.parquet",
        "a/../own.parquet",
        "{here}/elsewhere/../elsewhere/x.parquet",
        "file://{here}/table/../elsewhere/x.parquet",
        "own.parquet%00",
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_path_with_two_dots_or_nul_always_raises(tmp_path: Path, path: str, allowed: bool) -> None:
    spelled = path.format(here=tmp_path)
    table = table_with(tmp_path / "table", spelled, allow_external=allowed)
    assert table.snapshot().num_files() == 2
    with pytest.raises(ExternalPathError):
        read(table)


def test_two_dots_inside_a_file_name_are_allowed(tmp_path: Path) -> None:
    name = "..\\..\\a..b.parquet"
    add = data_file(tmp_path, name, numbers(1))
    snapshot_of(tmp_path, NUMBERS, add)
    assert read(lakelog.open(tmp_path)) == [1]


def test_absolute_path_below_the_table_is_not_external(tmp_path: Path) -> None:
    folder, link = tmp_path / "real", tmp_path / "link"
    paths = [f"{folder}/a.parquet", f"file:///{link}/b.parquet", f"file:{folder}//./c.parquet"]
    adds = [data_file(folder, path[-9:], numbers(n)) for n, path in enumerate(paths)]
    link.symlink_to(folder)
    for action, path in zip(adds, paths, strict=True):
        action["add"]["path"] = path
    snapshot_of(folder, NUMBERS, adds[0], adds[2])
    assert read(lakelog.open(folder)) == [0, 2]
    assert read(lakelog.open(link)) == [0, 2]
    other = tmp_path / "other"
    data_file(other, "b.parquet", numbers(1))
    (other / "b.parquet").rename(folder / "b.parquet")
    snapshot_of(other, NUMBERS, adds[1])
    with pytest.raises(ExternalPathError):
        read(lakelog.open(other))
    assert read(lakelog.open(other, allow_external=[link])) == [1]
    with pytest.raises(ExternalPathError):  # the path in the log is not below this folder
        read(lakelog.open(other, allow_external=[folder]))


def test_link_inside_the_table_is_followed_for_reading(tmp_path: Path) -> None:
    data_file(tmp_path / "elsewhere", "x.parquet", numbers(1))
    add = data_file(tmp_path / "table", "p/x.parquet", numbers(2))
    (tmp_path / "table/p/x.parquet").unlink()
    (tmp_path / "table/p").rmdir()
    (tmp_path / "table/p").symlink_to(tmp_path / "elsewhere")
    snapshot_of(tmp_path / "table", NUMBERS, add)
    assert read(lakelog.open(tmp_path / "table")) == [1]


@pytest.mark.parametrize("kind", ["absolute", "prefix"])
def test_external_deletion_vector_raises(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "table"
    if kind == "absolute":
        vector = vector_file(tmp_path / "elsewhere", {"v": [0]}, absolute=True)["v"]
    else:
        vector = vector_file(folder, {"v": [0]}, prefix="../elsewhere")["v"]
    add = data_file(folder, "a.parquet", numbers(1, 2), deletionVector=vector)
    snapshot_of(folder, NUMBERS, add)
    with pytest.raises(ExternalPathError) as refused:
        read(lakelog.open(folder))
    assert "elsewhere" in str(refused.value.path)
    allowed = lakelog.open(folder, allow_external=tmp_path / "elsewhere")
    if kind == "absolute":
        assert read(allowed) == [2]
    else:
        with pytest.raises(ExternalPathError):
            read(allowed)


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    for folder in ("/contained", "/contained2"):
        if filesystem.exists(folder):
            filesystem.rm(folder, recursive=True)


def test_remote_table_opens_neither_local_files_nor_another_bucket(
    tmp_path: Path, memory: Any
) -> None:
    table_with(tmp_path / "table", "/elsewhere/x.parquet")
    log = tmp_path / "table/_delta_log/00000000000000000000.json"
    text = log.read_text()

    def name(path: str) -> None:
        changed = text.replace("/elsewhere/x.parquet", path)
        memory.pipe(f"/contained/table/_delta_log/{log.name}", changed.encode())

    memory.put(str(tmp_path / "table"), "/contained/table", recursive=True)
    memory.put(str(tmp_path / "elsewhere"), "/contained2", recursive=True)
    memory.put(str(tmp_path / "elsewhere/x.parquet"), "/contained/other/x.parquet")
    location = "memory://contained/table"
    cases: list[tuple[str, Any]] = [
        (f"file://{tmp_path}/elsewhere/x.parquet", tmp_path / "elsewhere"),
        ("memory://contained2/x.parquet", "memory://contained2"),
        ("/other/x.parquet", "memory://contained/other"),  # of the table's own bucket
    ]
    for path, prefix in cases:
        name(path)
        with pytest.raises(ExternalPathError):
            read(lakelog.open(location))
        assert read(lakelog.open(location, allow_external=prefix)) == [1, 9]
        assert read(lakelog.open(location, allow_external=True)) == [1, 9]
    for path in ("%252e%252e/x.parquet", "memory://contained/table/..%2Fother/x.parquet"):
        name(path)
        with pytest.raises(ExternalPathError):
            read(lakelog.open(location, allow_external=True))


SECRET = {"token": "of-the-table"}


@pytest.mark.parametrize(
    ("location", "path", "expected"),
    [
        ("s3://bucket/table", "s3://bucket/table/x", "x"),
        ("s3://bucket/table/", "s3a://bucket/table/p=1/x", "p=1/x"),
        ("s3://bucket/table", "/table/x", "x"),
        ("s3://bucket", "s3://bucket/x", "x"),
        ("abfss://c@account.host/t", "abfs://c@account.host/t/x", "x"),
        ("s3://bucket/table", "s3://bucket/table2/x", SECRET),
        ("s3://bucket/table", "/other/x", SECRET),
        ("s3://bucket/table", "s3://bucket2/table/x", None),
        ("s3://bucket/table", "gs://bucket/table/x", None),
        ("abfss://c@account.host/t", "abfss://c@other.host/t/x", None),
        ("abfss://c@account.host/t", "abfss://d@account.host/t/x", None),
        ("https://host/t", "http://host/t/x", None),
        ("https://host/t", "https://host.evil/t/x", None),
        ("s3://bucket/table", "file:///no/such/file", None),
        ("/data/table", "s3://bucket/x", None),
        ("simplecache::s3://bucket/table", "s3://bucket/table/x", None),
    ],
)
def test_store_options_of_the_table_are_not_passed_to_other_stores(
    location: str, path: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(expected, str):
        assert AllowedLocations(location, External(), SECRET).resolve(path) == expected
        return
    with pytest.raises(ExternalPathError) as refused:
        AllowedLocations(location, External(), SECRET).resolve(path)
    assert "of-the-table" not in str(refused.value)
    calls: list[tuple[str, object]] = []

    def opened(place: str, options: object, *_: object) -> Any:
        calls.append((place, options))
        return open_store("memory://contained")

    monkeypatch.setattr(bounded, "open_bounded", opened)
    reading = Sources(
        AllowedLocations(location, External(everything=True), SECRET), open_store(".")
    )
    with pytest.raises(lakelog.LakelogError):
        reading.open(path)
    assert calls == ([] if path.startswith("file:") else [(calls[0][0], expected)])


def test_allowed_prefixes_match_whole_path_segments() -> None:
    allowed = External.of(["s3a://bucket/base/", "gs://all"])
    locations = AllowedLocations("/table", allowed)
    for path in ("s3://bucket/base/x", "s3a://bucket/base/a/b", "gs://all/x", "gcs://all/a/x"):
        assert not isinstance(locations.resolve(path), str)
    for path in ("s3://bucket/base2/x", "s3://bucket/bas", "s3://bucket/base", "gs://all2/x", "/x"):
        with pytest.raises(ExternalPathError):
            locations.resolve(path)


@pytest.mark.parametrize("wrong", [None, 1, "", [""], [1], [None], b"s3://b", ["s3://b/../c"], {}])
def test_invalid_allow_external_raises(tmp_path: Path, wrong: Any) -> None:
    snapshot_of(tmp_path, NUMBERS)
    with pytest.raises(InvalidInputError):
        lakelog.open(tmp_path, allow_external=wrong)


def test_plan_carries_the_permission_to_other_processes(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    table = table_with(tmp_path / "table", f"{elsewhere}/x.parquet")
    files = table.snapshot().files().collect()
    cases: list[tuple[Any, int | None]] = [(False, None), ([elsewhere], 2)]
    for allowed, rows in cases:
        again = lakelog.open(tmp_path / "table", allow_external=allowed)
        plan = pickle.loads(pickle.dumps(ReadPlan.of(again.snapshot())))
        if rows is None:
            with pytest.raises(ExternalPathError):
                list(read_files(plan, files))
        else:
            assert sum(batch.num_rows for batch in read_files(plan, files)) == rows


@pytest.mark.parametrize("name", ["sig", "X-Amz-Signature"])
def test_unreadable_presigned_url_is_reported_without_its_signature(
    tmp_path: Path, name: str
) -> None:
    handmade = Handmade(tmp_path / "t")
    url = f"http://127.0.0.1:9/d/x.parquet?{name}=SECRET&se=2"
    handmade.commit(0, protocol(), metadata(), add(url))
    table = lakelog.open(tmp_path / "t", allow_external=True, read_timeout=20)
    with pytest.raises(UnavailableError) as caught:
        table.snapshot().scan().collect()
    assert "SECRET" not in f"{caught.value} {caught.value.as_dict()}"
    assert str(caught.value.path).startswith("http://127.0.0.1:9/d/x.parquet?")
