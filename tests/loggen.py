"""Random Delta logs from a seed, with all contents that real logs have or could have.

`generate` writes one log and is deterministic: the same seed and options give the same bytes. What
the log means is defined by `tests.model.replay`; the generator only tracks which files exist, so
that it can remove them. Commits are valid; only files that do not determine the state
(compactions, pointers, checksums, noise) may be wrong.
"""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests import checkpoint_writer
from tests.handmade import close_compaction
from tests.model import replay
from tests.model.flatten import wire

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": n, "type": t, "nullable": True, "metadata": {}}
            for n, t in (("id", "long"), ("name", "string"), ("p", "string"), ("q", "integer"))
        ],
    }
)
FIRST_COMMIT_MS = 1_700_000_000_000
NAMES = ["a", "b c", "é", "雪", "😀", "x+y", "50%", "%2F", "#1", "a=b", "q?", "~", "sub/dir", "c'd"]
TEXTS = [
    "",
    "x",
    "Zürich",
    '"quoted"',
    "back\\slash",
    "line\nbreak",
    "tab\t",
    "😀",
    "\u2028",
    "null",
]
FEATURES = ["deletionVectors", "columnMapping", "v2Checkpoint", "timestampNtz", "typeWidening"]
LAYOUTS = ("classic", "classic-v2", "multipart", "v2-json", "v2-parquet")


@dataclass(frozen=True)
class Options:
    """The contents that a log may have. The defaults allow everything.

    Attributes:
        commits: Number of commits, at least 1.
        layouts: Checkpoint layouts to choose from; empty for none.
        checkpoints: Probability of a checkpoint at a version.
        forced: Versions that always get a checkpoint.
        truncate: Probability that the commits below a checkpoint are cleaned up.
        break_checkpoints: Probability that a checkpoint is damaged, if commits reach from 0.
        noise: Whether to add compactions, pointers, checksums and unrelated files.
        actions: Maximum number of file actions in a commit.
        odd: Whether commits are spelled unusually (white space, several actions on a line, unknown
            fields...); otherwise plainly.
    """

    commits: int = 8
    layouts: Sequence[str] = LAYOUTS
    checkpoints: float = 0.25
    forced: Sequence[int] = ()
    truncate: float = 0.2
    break_checkpoints: float = 0.0
    noise: bool = True
    actions: int = 5
    odd: bool = True


@dataclass
class Generator:
    """Writes one log below `root`."""

    root: Path
    rng: random.Random
    options: Options = field(default_factory=Options)
    live: dict[tuple[str, str], tuple[str, dict[str, Any] | None]] = field(default_factory=dict)
    dead: dict[tuple[str, str], tuple[str, dict[str, Any] | None]] = field(default_factory=dict)
    table_id: str = "id-0"
    in_commit_timestamps: bool = False
    serial: int = 0

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    @property
    def log(self) -> Path:
        return self.root / replay.LOG

    def write(self) -> Path:
        """Write the log and return the table's root."""
        self.log.mkdir(parents=True)
        self.in_commit_timestamps = self.chance(0.2)
        for version in range(self.options.commits):
            self._write_commit(version)
            if version in self.options.forced or self.chance(self.options.checkpoints):
                self._write_checkpoint(version)
        if self.options.noise:
            self._write_compactions()
            self._write_pointer()
            self._write_noise()
        return self.root

    # -- commits

    def _write_commit(self, version: int) -> None:
        actions = self._actions(version)
        path = self.log / f"{version:020d}.json"
        path.write_bytes(self._spell(actions))
        modified = (FIRST_COMMIT_MS + version * 60_000 + self.rng.randrange(1000)) * 1_000_000
        if self.chance(0.1):
            modified -= 120_000 * 1_000_000  # clocks go back, copies lose their order
        os.utime(path, ns=(modified, modified))

    def _actions(self, version: int) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = []
        if version == 0 or self.chance(0.1):
            actions.append({"protocol": self._protocol()})
        if version == 0 or self.chance(0.15):
            actions.append({"metaData": self._metadata()})
        actions += self._file_actions()
        actions += [{"txn": self._txn(app)} for app in "abc" if self.chance(0.15)]
        actions += [{"domainMetadata": self._domain(d)} for d in "de" if self.chance(0.15)]
        if self.options.odd:
            if self.chance(0.15):
                actions.append({"cdc": self._cdc()})
            if self.chance(0.1):
                actions.append({"someNewAction": self.rng.choice(JSON_VALUES)})
            if self.chance(0.3):
                self.rng.shuffle(actions)
        info = {"commitInfo": self._commit_info(version)}
        if self.in_commit_timestamps or not actions:
            actions.insert(0, info)
        elif self.chance(0.8):
            odd_place = self.options.odd and self.chance(0.4)
            actions.insert(self.rng.randrange(len(actions) + 1) if odd_place else 0, info)
        return actions

    def _file_actions(self) -> list[dict[str, Any]]:
        """Adds, removes, re-adds and new deletion vectors.

        A key occurs once per commit, or is added and removed again in the order of the lines.
        """
        actions: list[dict[str, Any]] = []
        touched: set[tuple[str, str]] = set()
        for _ in range(self.rng.randrange(self.options.actions + 1)):
            choice = self.rng.random()
            if choice < 0.25 and self.live:
                key = self.rng.choice(sorted(self.live))
                if key not in touched:
                    touched.add(key)
                    actions.append(self._remove(key))
            elif choice < 0.45 and self.live:
                old = self.rng.choice(sorted(self.live))
                path, _ = self.live[old]
                vector: dict[str, Any] | None = self._vector()
                new = (path, json.dumps(vector))
                if not {old, new} & touched and old != new:
                    touched |= {old, new}
                    pair = [self._remove(old), self._add(path, vector)]
                    actions += pair if self.chance(0.5) else pair[::-1]
            elif choice < 0.6 and self.dead:
                key = self.rng.choice(sorted(self.dead))
                if key not in touched:
                    touched.add(key)
                    actions.append(self._add(*self.dead[key]))
            else:
                path = self._path()
                vector = self._vector() if self.chance(0.2) else None
                key = (path, json.dumps(vector))
                if key not in touched:
                    touched.add(key)
                    actions.append(self._add(path, vector))
                    if self.options.odd and self.chance(0.05):
                        actions.append(self._remove(key))
        return actions

    def _add(self, path: str, vector: dict[str, Any] | None) -> dict[str, Any]:
        key = (path, json.dumps(vector))
        self.live[key] = (path, vector)
        self.dead.pop(key, None)
        body: dict[str, Any] = {
            "path": self._encode(path),
            "partitionValues": self._partition_values(),
            "size": self.rng.choice([0, 1, 4096, 2**31, 2**53 + 1, 2**63 - 1]),
            "modificationTime": FIRST_COMMIT_MS + self.rng.randrange(10**6),
            "dataChange": self.chance(0.8),
        }
        if self.chance(0.7):
            body["stats"] = self._stats()
        if self.chance(0.2):
            body["tags"] = self._text_map()
        if vector is not None or self.chance(0.1):
            body["deletionVector"] = vector
        if self.chance(0.2):
            body |= {"baseRowId": self.rng.randrange(100), "defaultRowCommitVersion": 0}
        if self.chance(0.1):
            body["clusteringProvider"] = "liquid"
        return {"add": self._odd_fields(body, optional=("partitionValues", "modificationTime"))}

    def _remove(self, key: tuple[str, str]) -> dict[str, Any]:
        path, vector = self.live.pop(key)
        self.dead[key] = (path, vector)
        body: dict[str, Any] = {"path": self._encode(path), "dataChange": self.chance(0.8)}
        if self.chance(0.8):
            body["deletionTimestamp"] = FIRST_COMMIT_MS + self.rng.randrange(10**6)
        if self.chance(0.5):
            body |= {
                "extendedFileMetadata": True,
                "partitionValues": self._partition_values(),
                "size": self.rng.randrange(10**6),
            }
        if self.chance(0.1):
            body["stats"] = self._stats()
        if vector is not None:
            body["deletionVector"] = vector
        return {"remove": self._odd_fields(body)}

    def _odd_fields(self, body: dict[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
        if not self.options.odd:
            return body
        for name in optional:
            if self.chance(0.05):
                del body[name]
        if self.chance(0.1):
            body["fieldOfTomorrow"] = self.rng.choice(JSON_VALUES)
        if self.chance(0.1):
            body["nothing"] = None
        if self.chance(0.1):
            items = list(body.items())
            self.rng.shuffle(items)
            body = dict(items)
        return body

    def _path(self) -> str:
        self.serial += 1
        name = self.rng.choice(NAMES)
        if self.chance(0.05):
            return f"s3://bucket/{name}/{self.serial}.parquet"
        return f"{name}/part-{self.serial:05d}.parquet"

    def _encode(self, path: str) -> str:
        """One of the spellings of a path: as a URI, or raw if that is not ambiguous."""
        if self.chance(0.4) and "%" not in path:
            return path
        safe = "/:" + self.rng.choice(["", "+=~", "é雪😀#'? "])
        return "".join(c if c in safe else quote(c, safe=safe if c.isascii() else "") for c in path)

    def _vector(self) -> dict[str, Any]:
        kind = self.rng.choice("uip")
        text = "".join(self.rng.choices(string.ascii_letters + "@+-:", k=20))
        where = {"u": f"ab{text}", "i": text, "p": f"s3://b/deletion_vector_{text}.bin"}[kind]
        body: dict[str, Any] = {"storageType": kind, "pathOrInlineDv": where}
        if kind != "i" and self.chance(0.7):
            body["offset"] = self.rng.choice([0, 1, 2**31 - 1])
        elif self.chance(0.2):
            body["offset"] = None
        return body | {"sizeInBytes": 40, "cardinality": self.rng.randrange(100)}

    def _partition_values(self) -> dict[str, str | None]:
        values = {"p": self.rng.choice([*TEXTS, None]), "q": self.rng.choice(["1", "-7", None])}
        return {k: v for k, v in values.items() if self.chance(0.85)}

    def _text_map(self) -> dict[str, str | None]:
        keys = self.rng.sample(["INSERTION_TIME", "ZCUBE", "clé", 'k"ey', "null"], k=2)
        return {k: self.rng.choice([*TEXTS, None]) for k in keys}

    def _stats(self) -> Any:
        if self.options.odd and self.chance(0.1):
            return self.rng.choice(["null", "", "{}", "{not json", '{"numRecords":null}'])
        low, high = sorted(self.rng.choices(range(1000), k=2))
        stats = {
            "numRecords": self.rng.randrange(100),
            "minValues": {"id": low, "name": self.rng.choice(TEXTS)},
            "maxValues": {"id": high, "name": self.rng.choice(TEXTS)},
            "nullCount": {"id": 0, "name": self.rng.randrange(5)},
        }
        if self.options.odd and self.chance(0.05):
            return stats  # an object where the protocol asks for its text
        return json.dumps(stats, ensure_ascii=self.chance(0.5))

    def _protocol(self) -> dict[str, Any]:
        if self.chance(0.5):
            return {"minReaderVersion": 1, "minWriterVersion": 2}
        features = self.rng.sample(FEATURES, k=self.rng.randrange(len(FEATURES)))
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "domainMetadata"],
        }

    def _metadata(self) -> dict[str, Any]:
        configuration = {k: v for k, v in self._text_map().items() if v is not None}
        if self.in_commit_timestamps:
            configuration["delta.enableInCommitTimestamps"] = "true"
        body: dict[str, Any] = {
            "id": self.table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": SCHEMA,
            "partitionColumns": ["p", "q"],
            "configuration": configuration,
        }
        optional = {"name": "tablé", "description": "", "createdTime": 17}
        body |= {name: value for name, value in optional.items() if self.chance(0.5)}
        return self._odd_fields(body)

    def _txn(self, app: str) -> dict[str, Any]:
        body: dict[str, Any] = {"appId": app, "version": self.rng.randrange(-5, 100)}
        if self.chance(0.5):
            body["lastUpdated"] = FIRST_COMMIT_MS
        return body

    def _domain(self, domain: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "domain": f"delta.{domain}",
            "configuration": self.rng.choice(TEXTS),
        }
        if self.chance(0.8):
            body["removed"] = self.chance(0.4)
        return body

    def _cdc(self) -> dict[str, Any]:
        path = self._encode(f"_change_data/{self._path()}")
        return {"path": path, "partitionValues": {}, "size": 10, "dataChange": False}

    def _commit_info(self, version: int) -> dict[str, Any]:
        info: dict[str, Any] = {
            "timestamp": FIRST_COMMIT_MS + version,
            "operation": self.rng.choice(["WRITE", "MERGE", "VACUUM END"]),
            "operationParameters": {"mode": "Append", "n": 5, "list": [1], "none": None},
        }
        if self.in_commit_timestamps:
            info["inCommitTimestamp"] = FIRST_COMMIT_MS + 3_600_000 + version
        if self.chance(0.5):
            info["operationMetrics"] = {"numFiles": "3", "numBytes": 12}
        if self.chance(0.3):
            info |= {"engineInfo": "gen/1", "isBlindAppend": True, "userName": "Zoë", "txnId": "t"}
        if self.options.odd and self.chance(0.1):
            info |= {"operation": ["x"], "isBlindAppend": "no", "operationMetrics": [1]}
        if self.chance(0.3):
            info |= {"notebook": {"notebookId": 7}, "tags": {"x": None}}
        return info

    def _spell(self, actions: list[dict[str, Any]]) -> bytes:
        """The bytes of a commit: plain, or with every variation that JSON allows."""
        odd = self.options.odd
        if odd and self.chance(0.15):
            actions = self._share_lines(actions)
        lines = []
        for action in actions:
            spaced = odd and self.chance(0.1)
            text = json.dumps(
                action,
                separators=(" ,\t", " : ") if spaced else (",", ":"),
                ensure_ascii=self.chance(0.3),
            )
            lines.append(f" \t{text} \r" if odd and self.chance(0.05) else text)
            if odd and self.chance(0.05):
                lines.append(self.rng.choice(["", " ", "\t\r", "{}"]))
        if odd and self.chance(0.05):
            lines.insert(0, "")
        return ("\n".join(lines) + ("\n" if self.chance(0.8) else "")).encode()

    def _share_lines(self, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Put neighbours of different types on one line; add and remove never share one.

        Nothing defines the order of an add and a remove on one line.
        """
        shared: list[dict[str, Any]] = []
        for action in actions:
            kinds = {*(shared[-1] if shared else ()), *action}
            both = {"add", "remove"} <= kinds
            if shared and self.chance(0.5) and not both and not shared[-1].keys() & action.keys():
                shared[-1] = {**shared[-1], **action}
            else:
                shared.append(action)
        return shared

    # -- checkpoints, compactions and other files

    def _write_checkpoint(self, version: int) -> None:
        if not self.options.layouts:
            return
        layout = self.rng.choice(self.options.layouts)
        state = replay.replay(self.root, version)
        paths = checkpoint_writer.write(self.root, state, layout, self.rng)
        if self.chance(self.options.break_checkpoints):
            self._break(self.rng.choice(paths))
        elif self.chance(self.options.truncate):
            for old in range(version + (1 if self.chance(0.3) else 0)):
                (self.log / f"{old:020d}.json").unlink(missing_ok=True)

    def _break(self, path: Path) -> None:
        data = path.read_bytes()
        how = self.rng.randrange(4)
        if how == 0:
            path.write_bytes(data[: self.rng.randrange(1, len(data))])
        elif how == 1:
            path.write_bytes(b"\0" * len(data))
        elif how == 2:
            path.write_bytes(b"")
        else:
            path.unlink()

    def _write_compactions(self) -> None:
        versions = [v for v in range(self.options.commits) if self._has(v)]
        for _ in range(self.rng.randrange(3)):
            if len(versions) < 2:
                return
            start, end = sorted(self.rng.sample(versions, k=2))
            bodies = [json.loads(line) for line in self._reconciled(start, end)]
            if self.chance(0.4):
                bodies = self._not_reconciled(start, end)
            path = self.log / f"{start:020d}.{end:020d}.compacted.json"
            data = "".join(json.dumps(b, ensure_ascii=False) + "\n" for b in bodies).encode()
            path.write_bytes(data + close_compaction(data))

    def _has(self, version: int) -> bool:
        return (self.log / f"{version:020d}.json").exists()

    def _reconciled(self, start: int, end: int) -> list[str]:
        latest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in replay.decode_commits(self.root, start, end):
            kind = row["actionType"]
            if kind in {"add", "remove"}:
                latest["file", row["path"], row["dvId"]] = row
            elif kind in {"protocol", "metaData", "txn", "domainMetadata"}:
                latest[kind, row.get("appId"), row.get("domain")] = row
        return [json.dumps(checkpoint_writer.wrap(row)) for row in latest.values()]

    def _not_reconciled(self, start: int, end: int) -> list[dict[str, Any]]:
        """Compactions that are not reconciled and newest first, like the only public ones."""
        rows = replay.decode_commits(self.root, start, end)
        kept = [r for r in reversed(rows) if r["actionType"] in wire("delta")]
        return [checkpoint_writer.wrap(r) for r in kept if r["actionType"] != "commitInfo"]

    def _write_pointer(self) -> None:
        version = self.rng.randrange(self.options.commits + 3)
        texts = [
            "",
            "{",
            "null",
            "\0\0",
            '{"version":"x"}',
            '{"version":-1}',
            json.dumps({"version": version, "size": 1}),
            json.dumps({"version": version, "size": 1, "parts": 3, "checksum": "0" * 32}),
        ]
        known = [c.version for c in replay.list_log(self.root).candidates]
        texts += [json.dumps({"version": v}) for v in known] * 2
        if self.chance(0.8):
            (self.log / "_last_checkpoint").write_text(self.rng.choice(texts))

    def _write_noise(self) -> None:
        last = self.options.commits
        names = [
            f".{0:020d}.json.crc",
            f"._{last:020d}.json",
            f"{last:019d}.json",
            f"{last:020d}.json.tmp",
            f"{last:020d}.JSON",
            f"{last:020d}.checkpoint.parquet.tmp",
            f"{last:020d}.checkpoint.0000000001.0000000002.parquet",
            f"{last:020d}.checkpoint.not-a-uuid.parquet",
            f"{last:020d}.00000000-0000-0000-0000-000000000000.json",
            f"{0:020d}.crc",
            f"{last - 1:020d}.crc",
            f".tmp/{last:020d}.json",
            f"_staged_commits/{last:020d}.00000000-0000-0000-0000-000000000000.json",
            f"_trino_meta/{last:020d}.json",
            f"_sidecars/{last:020d}.checkpoint.0000000001.0000000001.parquet",
        ]
        for name in names:
            if self.chance(0.2):
                path = self.log / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(self.rng.choice(["", "{", '{"tableSizeBytes":1,"numFiles":99}']))


JSON_VALUES: list[Any] = [
    1,
    -1.5,
    "text",
    True,
    ["a", "1"],
    {"a": 1, "b": {"c": None, "é": "x"}},
    {},
    [],
    [{"deep": [1, {"er": "☃"}]}],
]


def generate(root: Path, seed: int, options: Options | None = None) -> Path:
    """Write the log of `seed` below `root` (which must not exist) and return `root`."""
    return Generator(root, random.Random(seed), options or Options()).write()
