"""The contract only grows: a released schema stays valid.

`released/` has the schemas of the last release. A release that adds fields copies the contract
there; no other edit of those files is correct.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from lakelog.model import contract

RELEASED = Path(__file__).parent / "released"

Json = dict[str, Any]


def incompatibilities(released: Json, current: Json, within: str = "") -> list[str]:
    """Changes in `current` that break a reader or writer of `released`, one sentence each.

    Fields may be added if nullable: files written before them lack them. Everything else about a
    released field is fixed: its name, type, nullability, unit, and the version that introduced it.
    The prose of `doc`, and the location of a value in a dialect, may be corrected.
    """
    found: list[str] = []
    now = {field["name"]: field for field in current["fields"]}
    before = {field["name"] for field in released["fields"]}
    if len(now) != len(current["fields"]):
        found.append(f"{within or 'schema'}: a name is used twice")
    for old in released["fields"]:
        name = within + old["name"]
        new = now.get(old["name"])
        if new is None:
            found.append(f"{name}: removed")
            continue
        if new["nullable"] != old["nullable"]:
            found.append(f"{name}: nullability changed")
        found += [
            f"{name}: {key} changed"
            for key in ("since", "unit")
            if new["metadata"].get(key) != old["metadata"].get(key)
        ]
        found += _changed_type(old["type"], new["type"], name)
    found += [
        f"{within}{field['name']}: added, but not nullable"
        for field in current["fields"]
        if field["name"] not in before and not field["nullable"]
    ]
    return found


def _changed_type(old: Any, new: Any, name: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"] == "struct":
        return incompatibilities(old, new, name + ".")
    return [] if old == new else [f"{name}: type changed"]


@pytest.fixture
def released() -> Json:
    schema: Json = json.loads((RELEASED / "actions.json").read_text("utf-8"))
    return schema


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.json")), ids=lambda p: p.stem)
def test_the_contract_is_compatible_with_the_released_one(path: Path) -> None:
    current = json.loads((contract.schema_directory() / path.name).read_text("utf-8"))
    assert incompatibilities(json.loads(path.read_text("utf-8")), current) == []


def test_every_schema_has_a_released_copy(repository: Path) -> None:
    schemas = {path.name for path in (repository / "schemas").glob("*.json")}
    assert schemas == {path.name for path in RELEASED.glob("*.json")}


def field_of(schema: Json, name: str) -> Json:
    field: Json = next(f for f in schema["fields"] if f["name"] == name)
    return field


def remove(schema: Json) -> None:
    schema["fields"].remove(field_of(schema, "dvId"))


def rename(schema: Json) -> None:
    field_of(schema, "dvId")["name"] = "deletionVectorId"


def narrow(schema: Json) -> None:
    field_of(schema, "size")["type"] = "integer"


def retype_within_a_map(schema: Json) -> None:
    field_of(schema, "partitionValues")["type"]["valueType"] = "long"


def forbid_null(schema: Json) -> None:
    field_of(schema, "path")["nullable"] = False


def allow_null(schema: Json) -> None:
    field_of(schema, "actionType")["nullable"] = True


def change_since(schema: Json) -> None:
    field_of(schema, "path")["metadata"]["since"] = "0.2"


def change_unit(schema: Json) -> None:
    field_of(schema, "modificationTime")["metadata"]["unit"] = "microseconds since the Unix epoch"


def add_required_field(schema: Json) -> None:
    schema["fields"].append(
        {"name": "more", "type": "long", "nullable": False, "metadata": {"since": "0.2"}}
    )


def reuse_a_name(schema: Json) -> None:
    schema["fields"].append(deepcopy(field_of(schema, "path")))


@pytest.mark.parametrize(
    "edit",
    [
        remove,
        rename,
        narrow,
        retype_within_a_map,
        forbid_null,
        allow_null,
        change_since,
        change_unit,
        add_required_field,
        reuse_a_name,
    ],
)
def test_incompatible_edit_is_reported(released: Json, edit: Callable[[Json], None]) -> None:
    edited = deepcopy(released)
    edit(edited)
    assert len(incompatibilities(released, edited)) == 1


def test_incompatible_edit_of_a_nested_struct_is_reported() -> None:
    def schema(*names: str) -> Json:
        inner = [{"name": n, "type": "long", "nullable": True, "metadata": {}} for n in names]
        outer = {"type": "struct", "fields": inner}
        return {
            "type": "struct",
            "fields": [{"name": "s", "type": outer, "nullable": True, "metadata": {}}],
        }

    assert incompatibilities(schema("a", "b"), schema("a")) == ["s.b: removed"]
    assert incompatibilities(schema("a"), schema("a", "b")) == []


def add_at_the_end(schema: Json) -> None:
    schema["fields"].append(
        {"name": "more", "type": "long", "nullable": True, "metadata": {"since": "0.2"}}
    )


def add_in_the_middle(schema: Json) -> None:
    schema["fields"].insert(
        3, {"name": "more", "type": "long", "nullable": True, "metadata": {"since": "0.2"}}
    )


def correct_the_doc(schema: Json) -> None:
    field_of(schema, "path")["metadata"]["doc"] = "The file."


@pytest.mark.parametrize("edit", [add_at_the_end, add_in_the_middle, correct_the_doc])
def test_compatible_edit_is_not_reported(released: Json, edit: Callable[[Json], None]) -> None:
    edited = deepcopy(released)
    edit(edited)
    assert incompatibilities(released, edited) == []
