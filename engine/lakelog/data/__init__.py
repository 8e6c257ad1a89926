"""Rows: reading and writing the data files that a table's log names.

``files`` says how the rows of a version look, ``read`` gives them: ``sources`` opens data files,
``columns`` (with ``casts`` and ``calendar``) makes their columns the table's, ``vectors`` decodes
deletion vectors, ``groups`` leaves out row groups. ``scan`` makes a lazy frame of it, ``pack``
shares files out among tasks. ``write_plan`` says how the files of a write look,
``write`` writes them, ``append`` puts rows into a table in one commit. Everything here runs on one
machine and knows nothing of Spark, whose executors use it.
"""
