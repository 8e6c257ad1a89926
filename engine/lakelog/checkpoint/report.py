"""`CheckpointReport`: the result of a checkpoint request."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakelog.dialects.digest import Digest
from lakelog.log.display import size_text, table_html, table_text


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint that was written, or found there and kept.

    Attributes:
        version: Version whose state it holds.
        layout: As `lakelog.dialects.log_content.Checkpoint.layout`.
        paths: Its files, relative to the table root.
        size_bytes: Their length together, kept sidecars included.
        num_adds: Live files in it.
        num_removes: Tombstones in it.
        num_actions: Actions in it, of all types.
        parts: Number of its files.
        reused_files: How many of them were there before.
        digest: Digest of its actions; of counts alone where it was not verified.
        seconds: How long it all took.
        verify_seconds: How long reading back and comparing took.
        verified: Whether it was proved against replay.
        pointer_moved: Whether ``_last_checkpoint`` names it now and did not before.
        reused: Whether it was there already, and nothing was written.
        notes: What deserves attention, one sentence each.
    """

    version: int
    layout: str
    paths: tuple[str, ...]
    size_bytes: int
    num_adds: int
    num_removes: int
    num_actions: int
    parts: int
    reused_files: int
    digest: Digest = field(repr=False)
    seconds: float = 0.0
    verify_seconds: float = 0.0
    verified: bool = False
    pointer_moved: bool = False
    reused: bool = False
    notes: tuple[str, ...] = ()

    def _facts(self) -> list[tuple[str, str]]:
        files = f"{self.parts}" + (f", {self.reused_files} kept" if self.reused_files else "")
        verified = f"yes, {self.verify_seconds:.2f} s" if self.verified else "no"
        facts = [
            ("version", str(self.version)),
            ("layout", self.layout),
            ("live files", f"{self.num_adds:,}"),
            ("tombstones", f"{self.num_removes:,}"),
            ("other actions", f"{self.num_actions - self.num_adds - self.num_removes:,}"),
            ("size", size_text(self.size_bytes)),
            ("files", files),
            ("verified", verified),
            ("pointer moved", "yes" if self.pointer_moved else "no"),
            ("took", f"{self.seconds:.2f} s"),
        ]
        return facts + [("note", note) for note in self.notes]

    @property
    def _title(self) -> str:
        return "Checkpoint, which was there" if self.reused else "Checkpoint"

    def __str__(self) -> str:
        return table_text(self._title, self._facts())

    def _repr_html_(self) -> str:
        return table_html(self._title, self._facts())
