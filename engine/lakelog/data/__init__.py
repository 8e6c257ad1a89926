"""Rows: reading and writing the data files that a table's log names.

``files`` says how the rows of a version look, ``read`` gives them, ``vectors`` decodes deletion
vectors, ``pack`` shares files out among tasks. ``write_plan`` says how the files of a write look,
``write`` writes them, ``append`` puts rows into a table in one commit. Everything here runs on one
machine and knows nothing of Spark, whose executors use it.
"""
