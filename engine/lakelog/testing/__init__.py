"""Tests of stores and with stores; imports no test framework.

`StoreContract` is the suite that a store passes before `lakelog.open(store=)` can rely on it.
`InjectingStore` wraps a store, and adds failures, lost responses, kills and latency by `Rule`.
"""

from lakelog.testing._injecting_store import (
    FAULTS,
    KINDS,
    WRITES,
    Fault,
    InjectingStore,
    Kind,
    Rule,
)
from lakelog.testing._store_contract import StoreContract

__all__ = [
    "FAULTS",
    "KINDS",
    "WRITES",
    "Fault",
    "InjectingStore",
    "Kind",
    "Rule",
    "StoreContract",
]
