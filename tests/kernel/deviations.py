"""Where the Java Kernel deviates from the protocol, or reads less than it may.

Each entry has a test of its name in `test_deviations.py`, which fails once a newer Kernel no longer
deviates. What lakelog does about each is tested in `test_lakelog_reads_kernel.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deviation:
    """One deviation.

    Attributes:
        name: What the Kernel does.
        clause: The protocol's clause, with its requirement.
        effect: The consequence for a table that both engines write.
    """

    name: str
    clause: str
    effect: str


DEVIATIONS = (
    Deviation(
        "a_checkpoint_keeps_the_remove_of_a_file_that_was_added_again",
        "Action Reconciliation: a newer add of a logical file replaces its remove, so that a"
        " checkpoint has one of the two",
        "the file is live, and a reader must not take the remove for the newer action",
    ),
    Deviation(
        "a_checkpoint_drops_the_removes_of_the_checkpoint_before",
        "Action Reconciliation: a remove stays in checkpoints until its deletionTimestamp plus the"
        " retention has passed",
        "tombstones is short of files that were removed before the earlier checkpoint",
    ),
    Deviation(
        "the_pointer_counts_live_files_only",
        "Last Checkpoint File Schema: size is the number of actions in the checkpoint",
        "a reader that compares size with the number of actions must also accept that of adds",
    ),
    Deviation(
        "paths_are_compared_as_the_text_of_a_uri",
        "Add File and Remove File: a path is a URI, which must be decoded to get the file",
        "a remove that spells a path otherwise than its add removes nothing for the Kernel",
    ),
    Deviation(
        "statistics_are_read_as_json_only",
        "Checkpoint Schema: stats_parsed holds the statistics, and stats may be left out",
        "it skips no file by the statistics of checkpoints without writeStatsAsJson",
    ),
    Deviation(
        "a_checkpoint_needs_the_commit_of_its_version",
        "Checkpoints: the state of a version is its checkpoint, without the commits up to it",
        "a table whose cleanup deletes that commit, which the protocol allows, is refused",
    ),
    Deviation(
        "a_file_name_with_a_colon_cannot_be_opened_on_local_disk",
        "Add File: a path is any relative URI; the limit is that of Hadoop's local file system",
        "the rows of such a file are refused",
    ),
)
