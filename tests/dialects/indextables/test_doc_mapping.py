"""Document mapping hashes and references."""

from __future__ import annotations

import json
import random

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from lakelog.dialects.indextables import doc_mapping_hash
from lakelog.dialects.indextables.docmapping import resolve_references

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
