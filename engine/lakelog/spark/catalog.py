"""Tables created by SQL: ``CREATE TABLE … USING lakelog``.

Spark asks the source for a schema when such a table is created, keeps that, and later hands
nothing but the schema to readers: neither the location nor any option. So both travel in the
schema, as metadata of its columns. Dataframes that were loaded by path carry nothing.

Writers get the schema of the query, whose columns may carry the location of the table that it
reads: so no process writes to such a table by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from lakelog.errors import InvalidInputError
from lakelog.spark.options import STORAGE

KEY = "lakelog.options"
"""Metadata of a column: JSON of the options that its table was created with."""

_CREATED = "provider"
_OPTION = "option."


def is_created(options: Mapping[str, str]) -> bool:
    """Whether options are those of a table that is being created in a catalog."""
    return _CREATED in options


def created_with(options: Mapping[str, str]) -> dict[str, str]:
    """The source's options of a table that is being created; its properties are the catalog's."""
    if "location" not in options:
        raise InvalidInputError(
            "the folder of the catalog's table contains no table",
            expected="CREATE TABLE … USING lakelog LOCATION '…'",
            hint="create the table with lakelog.create",
        )
    own = {k.removeprefix(_OPTION): v for k, v in options.items() if k.startswith(_OPTION)}
    secret = sorted(key for key in own if key.startswith(STORAGE))
    if secret:
        raise InvalidInputError(
            (
                "a catalog's table cannot have options of the store: every user of the "
                "catalog could read them"
            ),
            path=options.get("path"),
            found=", ".join(secret),
            hint=(
                "create a temporary view with the options, or let the store find its credentials"
            ),
        )
    return own | {"path": options["location"]}


def remember(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema whose columns carry options."""
    text = json.dumps(dict(options), sort_keys=True)
    return StructType(
        [
            StructField(f.name, f.dataType, f.nullable, {**f.metadata, KEY: text})
            for f in schema.fields
        ]
    )


def recalled(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Options as they are given, with those that the schema carries where there is no path."""
    if "path" in options:
        return dict(options)
    for field in schema.fields:
        if KEY in field.metadata:
            return {**json.loads(field.metadata[KEY]), **options}
    return dict(options)
