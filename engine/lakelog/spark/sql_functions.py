"""The ``pyspark.sql.functions`` module of a classic or Connect session.

``pyspark.sql.functions`` chooses by the environment; one process may have sessions of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pyarrow as pa

from lakelog.spark.package_upload import is_connect


def functions_of(owner: Any) -> Any:
    """The module of functions for a session, a dataframe or a column."""
    return import_module(f"pyspark.sql{'.connect' if is_connect(owner) else ''}.functions")


def arrow_function(owner: Any, function: Callable[..., pa.Array], type_: Any) -> Any:
    """Convert a function on Arrow arrays to one on columns, as ``arrow_udf`` does."""
    if not is_connect(owner):
        from pyspark.sql.functions import arrow_udf

        return arrow_udf(function, type_)
    from pyspark.sql.connect.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    return UserDefinedFunction(function, type_, evalType=PythonEvalType.SQL_SCALAR_ARROW_UDF)
