"""Document mapping hashes and references."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.dialects.indextables import doc_mapping_hash
from lakelog.dialects.indextables.docmapping import resolve_references
from tests.dialects.indextables.writing import Log, add, metadata

_MAPPING = (
    '[{"fast":true,"indexed":true,"name":"id","stored":true,"type":"i64"},'
    '{"fast":true,"indexed":true,"name":"text","stored":true,"tokenizer":"raw","type":"text"}]'
)

_names = st.text(st.characters(codec="ascii"), max_size=5)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)


def test_hash_of_a_real_mapping_is_the_real_registry_key() -> None:
    assert doc_mapping_hash(_MAPPING) == "gC45RGOqJ_Grt0xH"


def test_hash_ignores_key_order_field_order_and_white_space() -> None:
    fields = json.loads(_MAPPING)
    shuffled = [dict(reversed(field.items())) for field in reversed(fields)]
    assert doc_mapping_hash(json.dumps(shuffled, indent=2)) == doc_mapping_hash(_MAPPING)


def test_hash_depends_on_the_order_of_unnamed_elements() -> None:
    assert doc_mapping_hash("[1,2]") != doc_mapping_hash("[2,1]")
    assert doc_mapping_hash('[{"name":"a"},2]') != doc_mapping_hash('[2,{"name":"a"}]')


def test_text_that_is_not_json_still_has_a_hash() -> None:
    assert len(doc_mapping_hash("not json")) == 16


@given(_json, st.integers())
def test_hash_does_not_depend_on_key_order(value: object, seed: int) -> None:
    rng = random.Random(seed)

    def shuffle(node: object) -> object:
        if isinstance(node, dict):
            keys = list(node)
            rng.shuffle(keys)
            return {key: shuffle(node[key]) for key in keys}
        return [shuffle(item) for item in node] if isinstance(node, list) else node

    assert doc_mapping_hash(json.dumps(shuffle(value))) == doc_mapping_hash(json.dumps(value))


def test_registered_references_are_resolved_and_others_are_kept() -> None:
    files = pl.DataFrame(
        {
            "docMappingRef": ["known", "unknown", None, "known"],
            "docMappingJson": [None, None, "own", "inline wins"],
        }
    )
    resolved = resolve_references(files, {"known": "text"})
    assert resolved["docMappingJson"].to_list() == ["text", None, "own", "inline wins"]
    assert resolved["docMappingRef"].to_list() == ["known", "unknown", None, "known"]


_PROTOCOL = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 3}}
_LAYOUTS = ("json", "json-multipart", "flattened")


def _mappings(log: Log) -> dict[str, str | None]:
    files = lakelog.open(str(log.root)).snapshot().files().collect()
    return dict(zip(files["path"], files["docMappingJson"], strict=True))


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_reference_is_resolved_by_the_metadata_of_a_checkpoint_below(
    tmp_path: Path, layout: str
) -> None:
    log = Log(tmp_path)
    log.commit(0, [_PROTOCOL, metadata(configuration={"docMappingSchema.h": "M"})])
    log.commit(1, [add("a", docMappingRef="h")])
    lakelog.open(str(tmp_path)).checkpoint(layout=layout)
    log.commit(2, [metadata(configuration={})])
    log.commit(3, [add("b", docMappingRef="h")])
    assert _mappings(log) == {"a": "M", "b": "M"}

    table = lakelog.open(str(tmp_path))
    table.checkpoint(layout=layout)
    for version in range(4):
        (log.folder / f"{version:020d}.json").unlink()
    assert _mappings(log) == {"a": "M", "b": "M"}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_reference_in_a_checkpoint_is_resolved_by_metadata_above_it(
    tmp_path: Path, layout: str
) -> None:
    log = Log(tmp_path)
    log.commit(0, [_PROTOCOL, metadata(configuration={})])
    log.commit(1, [add("a", docMappingRef="h")])
    lakelog.open(str(tmp_path)).checkpoint(layout=layout)
    log.commit(2, [metadata(configuration={"docMappingSchema.h": "M"})])
    assert _mappings(log) == {"a": "M"}

    table = lakelog.open(str(tmp_path))
    table.checkpoint(layout=layout)
    assert table.verify().verdict == "proved"
    assert _mappings(log) == {"a": "M"}


def test_reference_is_resolved_by_the_registry_of_an_avro_state_below(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0, [{"protocol": {"minReaderVersion": 4, "minWriterVersion": 4}}, metadata()])
    log.manifest("manifests/manifest-aaaaaaaa.avro", [add("a", docMappingRef="h")["add"]])
    log.state(1, {"manifests/manifest-aaaaaaaa.avro": 1}, schemaRegistry={"h": "M"})
    log.commit(2, [add("b", docMappingRef="h")])
    assert _mappings(log) == {"a": "M", "b": "M"}


def test_deeply_nested_mapping_is_hashed_and_checkpointed_as_text(tmp_path: Path) -> None:
    deep = "[" * 600 + "]" * 600
    assert doc_mapping_hash(deep) == doc_mapping_hash(deep)
    assert doc_mapping_hash(deep) != doc_mapping_hash(f"{deep} ")
    log = Log(tmp_path)
    log.commit(0, [_PROTOCOL, metadata()])
    log.commit(1, [add("a", docMappingJson=deep)])
    assert lakelog.open(str(tmp_path)).checkpoint().verified
    assert _mappings(log) == {"a": deep}
