"""Arrow metadata that is not UTF-8, at every entry point: Polars would panic."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.model.contract import without_metadata

BAD = {b"\xff\xfe": b"\xff", b"k": b"\xc3("}


def with_invalid_metadata(table: pa.Table) -> pa.Table:
    """The same table with invalid metadata of its schema and its fields."""
    fields = [pa.field(f.name, f.type, f.nullable, BAD) for f in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, BAD))


def nested() -> pa.Table:
    n = pa.field("n", pa.int64(), metadata=BAD)
    struct = pa.field("s", pa.struct([n]), metadata=BAD)
    types = {
        "struct": pa.struct([struct]),
        "list": pa.list_(pa.field("item", pa.struct([n]), metadata=BAD)),
        "large": pa.large_list(n),
        "fixed": pa.list_(n, 2),
        "map": pa.map_(pa.field("key", pa.string(), False, BAD), struct),
    }
    values = {
        "struct": [{"s": {"n": 1}}, None],
        "list": [[{"n": 1}], []],
        "large": [[1], None],
        "fixed": [[1, 2], [3, 4]],
        "map": [[("a", {"n": 1})], []],
    }
    return with_invalid_metadata(
        pa.table({name: pa.array(values[name], type_) for name, type_ in types.items()})
    )


def test_invalid_metadata_is_removed_at_every_depth_and_values_are_kept() -> None:
    table = nested()
    plain = without_metadata(table)
    assert "\\xff" not in plain.schema.to_string(show_field_metadata=True)
    assert plain.to_pylist() == table.to_pylist()
    assert pl.DataFrame(plain).height == 2
    batch = table.to_batches()[0]
    assert without_metadata(batch).to_pylist() == batch.to_pylist()
    assert without_metadata(plain) is plain


@pytest.mark.parametrize("kind", ["table", "batch", "reader", "stream"])
def test_rows_with_invalid_metadata_are_appended_and_read(tmp_path: Path, kind: str) -> None:
    rows = with_invalid_metadata(pa.table({"n": [1, 2]}))
    table = lakelog.create(tmp_path / kind, rows.schema)
    if kind == "reader":
        table.append(rows.to_reader())
    elif kind == "batch":
        table.append(rows.to_batches()[0])
    else:
        table.append(rows)
    table.overwrite(rows.slice(1), where=pl.col("n") > 1)
    assert sorted(table.snapshot().scan().collect()["n"].to_list()) == [1, 2]


def test_actions_with_invalid_metadata_are_committed(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64})
    with table.transaction() as tx:
        tx.add(with_invalid_metadata(pa.table({"path": ["a"], "size": [1]})))
        tx.add(with_invalid_metadata(pa.table({"path": ["b"], "size": [1]})).to_batches()[0])
    assert sorted(table.snapshot().files().collect()["path"]) == ["a", "b"]


def test_inventory_with_invalid_metadata_is_read(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64})
    listed = pa.table({"path": ["a"], "size": [1], "modificationTime": [0]})
    assert table.vacuum(inventory=with_invalid_metadata(listed)).files["path"].to_list() == ["a"]


def test_records_with_invalid_metadata_are_written(tmp_path: Path) -> None:
    records = with_invalid_metadata(pa.table({"key": [b"a"], "value": [b"1"]}))
    with lakelog.KeyedStore(tmp_path / "keyed") as store:
        store.put_table(records)
        store.flush()
        assert store.get("a") == b"1"
    with lakelog.WriteAheadLog(tmp_path / "wal") as log:
        log.append_table(
            with_invalid_metadata(pa.table({"op": ["PUT"], "key": [b"a"], "value": [b"1"]}))
        )
        assert log.replay().num_rows == 1


def add_invalid_footer_metadata(path: Path) -> None:
    pq.write_table(with_invalid_metadata(pq.read_table(path)), path)


def test_flattened_checkpoint_with_invalid_footer_metadata_is_read(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64}, format="indextables", upkeep=False)
    with table.transaction() as tx:
        tx.add(path="a.split", size=1)
    table.checkpoint(layout="flattened")
    (part,) = (tmp_path / "_transaction_log").rglob("*.checkpoint*.parquet")
    add_invalid_footer_metadata(part)
    assert lakelog.open(tmp_path).snapshot().files().collect()["path"].to_list() == ["a.split"]


def test_classic_checkpoint_with_invalid_footer_metadata_is_read_or_ignored(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"n": [1]}))
    table.checkpoint(layout="classic")
    (part,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    add_invalid_footer_metadata(part)
    assert lakelog.open(tmp_path).snapshot().scan().collect()["n"].to_list() == [1]
