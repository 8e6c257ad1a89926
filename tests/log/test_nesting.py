"""JSON nested beyond any parser's stack never aborts the process, in any place of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.handmade import Handmade, add, metadata, protocol
from tests.limited import outcomes

_DEPTHS = (300, 1_000, 100_000)
_START = [json.dumps(protocol()), json.dumps(metadata())]
_MARK = '"@"'


def _nested(depth: int) -> Iterator[tuple[str, str]]:
    yield f"{depth} arrays", "[" * depth + "]" * depth
    yield f"{depth} objects", '{"a":' * depth + "1" + "}" * depth


def _schema(depth: int) -> str:
    array = '{"type":"array","containsNull":true,"elementType":'
    field = '{"type":"struct","fields":[{"name":"s","nullable":true,"metadata":{},"type":'
    return field + array * depth + '"long"' + "}" * depth + "}]}"


def _files(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Files of a log with the nested text in one place each, keyed by the place."""
    first, second = f"{0:020d}.json", f"{1:020d}.json"

    def line(action: object) -> dict[str, str]:
        return {first: "\n".join(_START), second: json.dumps(action).replace(_MARK, text)}

    yield "line", {first: "\n".join(_START), second: text}
    yield "unknown action", line({"foo": "@"})
    yield "commitInfo", line({"commitInfo": {"foo": "@"}, "txn": {"appId": "a", "version": 1}})
    yield "stats object", line(add("a", stats="@"))
    yield "stats", line(add("a", stats=text))
    values = '{"numRecords":1,"minValues":{"id":%s}}'
    yield "stats of a column", line(add("a", stats=values % text))
    yield "partition value", line(add("a", partitionValues={"id": "@"}))
    yield "tags", line(add("a", tags={"x": text}))
    yield "unknown field", line(add("a", foo="@"))
    yield (
        "configuration",
        {first: "\n".join(_START), second: json.dumps(metadata(properties={"delta.x": text}))},
    )
    yield "schema", line(metadata() | {"metaData": metadata()["metaData"] | {"schemaString": text}})
    pointer = {"_last_checkpoint": f'{{"version":1,"x":{text}}}'}
    yield "pointer", line(add("a")) | pointer
    yield "version checksum", line(add("a")) | {f"{1:020d}.crc": f'{{"x":{text}}}'}


def test_deep_nesting_does_not_abort_the_process(tmp_path: Path) -> None:
    roots: dict[str, Path] = {}
    for depth in _DEPTHS:
        for shape, text in _nested(depth):
            for place, files in _files(text):
                name = f"{place}, {shape}"
                made = Handmade(tmp_path / name)
                roots[name] = made.root
                for file, content in files.items():
                    made.write(file, content.encode())
        made = Handmade(tmp_path / f"schema of {depth} arrays")
        body = metadata()["metaData"] | {"schemaString": _schema(depth)}
        made.commit(0, protocol(), {"metaData": body}, add("a"))
        roots[made.root.name] = made.root
    found = outcomes(roots, "where")
    assert set(found) == set(roots)
    odd = {name: answer for name, answer in found.items() if " " in answer}
    assert odd == {}
