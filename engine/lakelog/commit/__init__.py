"""Transactions: what is to be written, whether it may be, and how it becomes the next version.

What callers meet: ``transaction`` and ``create``; ``draft`` keeps what a transaction is told:
``staging`` (with ``maps``, ``rows``, ``schemas``) takes actions, ``changes`` metadata and protocol
(``column_mapping`` gives new columns their ids and names).

Whether it may be written, pure: ``checking`` asks ``gates`` (table features), ``consistency`` (with
``file_rules``, ``schema_evolution``, ``properties``) and ``upgrade`` (with ``features``).

How it is written: ``intent`` is what a transaction stands for, ``conflicts`` (with
``winning_state``) whether it survives a commit that came first, ``finalise`` (with
``row_tracking``, ``skips``, ``operations``) what depends on where it lands. ``head`` knows the end
of the log, ``writing`` is the loop that makes it the next version, ``quick`` its short way past
small commits of others, ``few`` the short way of a few plain file actions. ``runtime`` is what a
writer takes from its surroundings, ``steps`` what a commit changes of the end of the log,
``columns`` a schema's fields at any depth.
"""
