"""`Transaction`: a set of actions that is committed atomically as the table's next version."""

from __future__ import annotations

from lakelog.lazy import cached_property
from lakelog.snapshot import Snapshot
from lakelog.transaction.transaction import LogTransaction


class Transaction(LogTransaction):
    """A set of actions that is committed atomically as the table's next version.

    Create one with `Table.transaction` and use it as a context manager: leaving the block commits,
    an exception commits nothing. Without ``with``, call `commit`.

    A transaction reads the latest version when it starts (`snapshot`), or the given `version`. If
    other writers commit in between, it is rebased onto their commits, unless one of them changed
    a file that it removes, data that it read (`read`), the metadata, the protocol, or a domain or
    application version that it writes. Then a `ConflictError` names the commit and the rule.

    An empty transaction commits nothing, and its `version` stays None.

    A transaction is not thread-safe. Several transactions of one table can run concurrently.

    Source: Delta protocol, Actions; Delta's ConflictChecker.
    """

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version that the transaction reads. Using it does not record a read: use `read` for
        data that the actions depend on.
        """
        return Snapshot(super().snapshot.read_state(lambda state: state))
