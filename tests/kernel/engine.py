"""The Java Delta Kernel in one JVM, driven through Py4J; its answers are Python values.

PySpark brings Py4J and the Hadoop, Parquet and Jackson classes; the jars of Delta on Spark include
the Kernel (see `tests.spark.delta_jars`). A JVM takes half a second to start.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

State = dict[str, Any]
Row = dict[str, Any]

_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Duser.timezone=UTC",
    "--add-opens=java.base/java.util=ALL-UNNAMED",  # Py4J iterates the collections by reflection
)
_EPOCH = dt.datetime(1970, 1, 1)
_GETTERS = {
    "BooleanType": "getBoolean",
    "ByteType": "getByte",
    "ShortType": "getShort",
    "IntegerType": "getInt",
    "LongType": "getLong",
    "FloatType": "getFloat",
    "DoubleType": "getDouble",
    "StringType": "getString",
    "DecimalType": "getDecimal",
}


class Kernel:
    """The Java Kernel with its default engine."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._kernel = gateway.jvm.io.delta.kernel
        configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
        self._engine = self._kernel.defaults.engine.DefaultEngine.create(configuration)
        self._to_json = self._kernel.defaults.internal.json.JsonUtils.rowToJson

    @classmethod
    def start(cls, java: Path, jars: Sequence[Path]) -> Self:
        """Start the JVM; `java` is the executable."""
        import pyspark
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        spark_jars = Path(pyspark.__file__).parent / "jars"
        (bridge,) = spark_jars.glob("py4j-*.jar")
        port, token = launch_gateway(
            jarpath=os.fspath(bridge),
            classpath=os.pathsep.join([*map(os.fspath, jars), os.fspath(spark_jars / "*")]),
            java_path=os.fspath(java),
            javaopts=list(_JAVA_OPTIONS),
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=sys.__stderr__ if os.environ.get("LAKELOG_KERNEL_LOG") else None,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        return cls(JavaGateway(gateway_parameters=parameters))

    def stop(self) -> None:
        """End the JVM."""
        self._gateway.shutdown()

    # -- reading

    def state(self, path: str | Path, version: int | None = None) -> State:
        """A version of a table, in the form of `tests.spark.reference.our_state`.

        ``tombstones`` are those of the commits only: the Kernel reads none from a checkpoint.
        """
        snapshot = self._snapshot(path, version)
        metadata = self._json(snapshot.getMetadata().toRow())
        protocol = self._json(snapshot.getProtocol().toRow())
        found: dict[str, list[Row]] = {"add": [], "remove": [], "txn": []}
        for row in self._rows(snapshot.getCreateCheckpointIterator(self._engine)):
            for kind in found.keys() & row.keys():
                found[kind].append(row[kind])
        adds = [row["add"] for row in self._scan_files(snapshot)]
        files = {key_of(body): _file(body) for body in adds}
        assert len(files) == len(adds), "the Kernel returns a file twice"
        return {
            "version": snapshot.getVersion(),
            "timestamp": snapshot.getTimestamp(self._engine),
            "protocol": (
                protocol["minReaderVersion"],
                protocol["minWriterVersion"],
                *(
                    None if protocol.get(kind) is None else sorted(protocol[kind])
                    for kind in ("readerFeatures", "writerFeatures")
                ),
            ),
            "metadata": {
                "id": metadata["id"],
                "name": metadata.get("name"),
                "description": metadata.get("description"),
                "format": metadata["format"],
                "schemaString": json.loads(metadata["schemaString"]),
                "partitionColumns": metadata["partitionColumns"],
                "configuration": metadata["configuration"],
                "createdTime": metadata.get("createdTime"),
            },
            "schema": json.loads(self._schema_text(snapshot.getSchema())),
            "txns": {t["appId"]: (t["version"], t.get("lastUpdated")) for t in found["txn"]},
            "domains": {
                domain: found.getConfiguration()
                for domain, found in snapshot.getActiveDomainMetadataMap().items()
            },
            "files": files,
            "tombstones": {key_of(r): r.get("deletionTimestamp") for r in found["remove"]},
        }

    def rows(self, path: str | Path, version: int | None = None) -> list[Row]:
        """The rows of a version, as Python values."""
        snapshot = self._snapshot(path, version)
        scan = snapshot.getScanBuilder().build()
        state = scan.getScanState(self._engine)
        internal = self._kernel.internal
        physical = internal.data.ScanStateRow.getPhysicalDataReadSchema(state)
        none = self._jvm.java.util.Optional.empty()
        found: list[Row] = []
        for batch in self._each(scan.getScanFiles(self._engine)):
            for file in self._each(batch.getRows()):
                status = internal.InternalScanFileUtils.getAddFileStatus(file)
                one = internal.util.Utils.singletonCloseableIterator(status)
                read = self._engine.getParquetHandler().readParquetFiles(one, physical, none)
                data = self._iterator(result.getData() for result in self._each(read))
                logical = self._kernel.Scan.transformPhysicalData(self._engine, state, file, data)
                for selected in self._each(logical):
                    found += _selected_rows(selected)
        return found

    def changes(self, path: str | Path, start: int, end: int) -> list[tuple[int, str, Row]]:
        """The actions of the commits `start` to `end`: version, kind, and the action."""
        at = getattr(self._kernel, "CommitRangeBuilder$CommitBoundary").atVersion
        kinds = self._jvm.java.util.HashSet()
        kind = getattr(self._kernel.internal, "DeltaLogActionUtils$DeltaAction")
        for value in kind.values():
            kinds.add(value)
        commits = (
            self._kernel.TableManager.loadCommitRange(os.fspath(path), at(start))
            .withEndBoundary(at(end))
            .build(self._engine)
        )
        first = self._snapshot(path, start)
        found = []
        for batch in self._each(commits.getActions(self._engine, first, kinds)):
            for row in map(self._json, self._each(batch.getRows())):
                version = row.pop("version")
                row.pop("timestamp")
                found += [(version, kind, body) for kind, body in row.items()]
        return found

    def checksum(self, path: str | Path, version: int | None = None) -> Row | None:
        """What the Kernel reads from the version's ``.crc``."""
        found = self._snapshot(path, version).getCurrentCrcInfo()
        return self._json(found.get().toRow()) if found.isPresent() else None

    # -- writing

    def checkpoint(self, path: str | Path, version: int | None = None) -> None:
        """Write a checkpoint of a version."""
        self._snapshot(path, version).writeCheckpoint(self._engine)

    def write_checksum(self, path: str | Path, version: int) -> None:
        """Write the ``.crc`` of a version."""
        self._table(path).checksum(self._engine, version)

    def create(
        self,
        path: str | Path,
        schema: Mapping[str, Any],
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a table; `schema` as in schemaString."""
        text = json.dumps(schema)
        parsed = self._kernel.internal.types.DataTypeJsonSerDe.deserializeStructType(text)
        layouts = self._kernel.transaction.DataLayoutSpec
        layout = layouts.noDataLayout()
        if partition_by:
            layout = layouts.partitioned([self._column(name) for name in partition_by])
        elif cluster_by:
            layout = layouts.clustered([self._column(name) for name in cluster_by])
        transaction = (
            self._kernel.TableManager.buildCreateTableTransaction(
                os.fspath(path), parsed, "kernel tests"
            )
            .withTableProperties(dict(properties or {}))
            .withDataLayoutSpec(layout)
            .build(self._engine)
        )
        transaction.commit(self._engine, self._kernel.utils.CloseableIterable.emptyIterable())

    def append(
        self,
        path: str | Path,
        parquet: Path,
        partition: Mapping[str, str | int | None] | None = None,
        app: tuple[str, int] | None = None,
        domain: tuple[str, str] | None = None,
    ) -> int:
        """Append the rows of a Parquet file with all columns of the table, as one partition.

        Returns:
            The version.
        """
        builder = self._snapshot(path).buildUpdateTableTransaction(
            "kernel tests", self._kernel.Operation.WRITE
        )
        if app is not None:
            builder = builder.withTransactionId(*app)
        transaction = builder.build(self._engine)
        if domain is not None:
            transaction.addDomainMetadata(*domain)
        state = transaction.getTransactionState(self._engine)
        schema = transaction.getSchema(self._engine)
        values = {
            name: self._literal(value, schema.get(name).getDataType())
            for name, value in (partition or {}).items()
        }
        none = self._jvm.java.util.Optional.empty()
        status = self._kernel.utils.FileStatus.of(os.fspath(parquet), parquet.stat().st_size, 0)
        one = self._kernel.internal.util.Utils.singletonCloseableIterator(status)
        read = self._engine.getParquetHandler().readParquetFiles(one, schema, none)
        batches = self._iterator(
            self._kernel.data.FilteredColumnarBatch(result.getData(), none)
            for result in self._each(read)
        )
        interface = self._kernel.Transaction
        physical = interface.transformLogicalData(self._engine, state, batches, values)
        context = interface.getWriteContext(self._engine, state, values)
        written = self._engine.getParquetHandler().writeParquetFiles(
            context.getTargetDirectory(), physical, context.getStatisticsColumns()
        )
        actions = interface.generateAppendActions(self._engine, state, written, context)
        iterable = self._kernel.utils.CloseableIterable.inMemoryIterable(actions)
        version: int = transaction.commit(self._engine, iterable).getVersion()
        return version

    # -- helpers

    def _table(self, path: str | Path) -> Any:
        return self._kernel.Table.forPath(self._engine, os.fspath(path))

    def _snapshot(self, path: str | Path, version: int | None = None) -> Any:
        table = self._table(path)
        if version is None:
            return table.getLatestSnapshot(self._engine)
        return table.getSnapshotAsOfVersion(self._engine, version)

    def _scan_files(self, snapshot: Any) -> Iterator[Row]:
        scan = snapshot.getScanBuilder().build()
        return self._rows(scan.getScanFiles(self._engine, True))

    def _schema_text(self, schema: Any) -> str:
        text: str = self._kernel.internal.types.DataTypeJsonSerDe.serializeDataType(schema)
        return text

    def _column(self, name: str) -> Any:
        return self._kernel.expressions.Column(name)

    def _literal(self, value: str | int | None, type_: Any) -> Any:
        literals = self._kernel.expressions.Literal
        if value is None:
            return literals.ofNull(type_)
        name = type_.getClass().getSimpleName()
        makers: dict[str, Callable[[Any], Any]] = {
            "StringType": literals.ofString,
            "IntegerType": literals.ofInt,
            "LongType": literals.ofLong,
            "DateType": literals.ofDate,
        }
        return makers[name](value)

    def _json(self, row: Any) -> Row:
        parsed: Row = json.loads(self._to_json(row))
        return parsed

    def _rows(self, batches: Any) -> Iterator[Row]:
        for batch in self._each(batches):
            for row in self._each(batch.getRows()):
                yield self._json(row)

    def _each(self, iterator: Any) -> Iterator[Any]:
        """The elements of a Java iterator, which is closed after the last one."""
        while iterator.hasNext():
            yield iterator.next()
        iterator.close()

    def _iterator(self, items: Iterator[Any]) -> Any:
        """A Java iterator over Python elements."""
        collected = self._jvm.java.util.ArrayList()
        for item in items:
            collected.add(item)
        return self._kernel.internal.util.Utils.toCloseableIterator(collected.iterator())


def key_of(body: Row) -> tuple[str, str | None]:
    """The decoded path and, if there is a deletion vector, its identifier."""
    vector = body.get("deletionVector")
    if vector is None:
        return unquote(body["path"]), None
    offset = "" if vector.get("offset") is None else f"@{vector['offset']}"
    return unquote(body["path"]), vector["storageType"] + vector["pathOrInlineDv"] + offset


def _file(body: Row) -> Row:
    vector = body.get("deletionVector") or {}
    stats = body.get("stats")
    return {
        "partitionValues": body["partitionValues"],
        "size": body["size"],
        "modificationTime": body["modificationTime"],
        "tags": body.get("tags") or None,
        "baseRowId": body.get("baseRowId"),
        "defaultRowCommitVersion": body.get("defaultRowCommitVersion"),
        "stats": None if stats is None else json.loads(stats, parse_int=float),
        "dvStorageType": vector.get("storageType"),
        "dvPathOrInline": vector.get("pathOrInlineDv"),
        "dvOffset": vector.get("offset"),
        "dvSizeInBytes": vector.get("sizeInBytes"),
        "dvCardinality": vector.get("cardinality"),
    }


def _selected_rows(selected: Any) -> Iterator[Row]:
    """The rows of a batch that its selection vector keeps."""
    batch = selected.getData()
    selection = selected.getSelectionVector()
    kept = selection.get() if selection.isPresent() else None
    fields = [(f.getName(), f.getDataType()) for f in batch.getSchema().fields()]
    vectors = [batch.getColumnVector(number) for number in range(len(fields))]
    for at in range(batch.getSize()):
        if kept is None or (not kept.isNullAt(at) and kept.getBoolean(at)):
            yield {
                name: _value(vector, at, type_)
                for (name, type_), vector in zip(fields, vectors, strict=True)
            }


def _value(vector: Any, at: int, type_: Any) -> Any:
    """One value in its Python type; timestamps in UTC without a zone."""
    if vector.isNullAt(at):
        return None
    name = type_.getClass().getSimpleName()
    if name in _GETTERS:
        return getattr(vector, _GETTERS[name])(at)
    if name == "DateType":
        return (_EPOCH + dt.timedelta(days=vector.getInt(at))).date()
    if name in {"TimestampType", "TimestampNTZType"}:
        return _EPOCH + dt.timedelta(microseconds=vector.getLong(at))
    if name == "BinaryType":
        return bytes(vector.getBinary(at))
    if name == "StructType":
        return {
            field.getName(): _value(vector.getChild(number), at, field.getDataType())
            for number, field in enumerate(type_.fields())
        }
    if name == "ArrayType":
        found = vector.getArray(at)
        elements = found.getElements()
        return [_value(elements, i, type_.getElementType()) for i in range(found.getSize())]
    if name == "MapType":
        found = vector.getMap(at)
        keys, values = found.getKeys(), found.getValues()
        return {
            _value(keys, i, type_.getKeyType()): _value(values, i, type_.getValueType())
            for i in range(found.getSize())
        }
    raise AssertionError(f"a type that these tests do not read: {name}")
