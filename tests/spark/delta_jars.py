"""Delta Lake's jars for Spark, fetched once by Spark's own resolver and cached.

Spark resolves packages through Ivy, which verifies the published checksums. Jars that Spark
includes are excluded, so that few are fetched. They are stored in ``.cache/``; later runs use them
without a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""Delta Lake for the Spark that `pyproject.toml` pins: a Delta release fits one minor of Spark."""

INCLUDED_IN_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.slf4j:*",
)

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"
SECONDS = 240.0


class JarsUnavailableError(Exception):
    """The jars are not cached and cannot be fetched; the text has the reason."""


def delta_jars(java_home: Path) -> list[Path]:
    """Delta's jars, from the cache or fetched into it.

    Raises:
        JarsUnavailableError: They are neither cached nor available for download.
    """
    key = hashlib.sha256(" ".join((DELTA, *INCLUDED_IN_SPARK)).encode()).hexdigest()[:12]
    kept = CACHE / f"delta-jars-{key}"
    CACHE.mkdir(exist_ok=True)
    # Test workers in parallel fetch once: the others wait and find what it fetched.
    with (CACHE / "delta-jars.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.is_dir():
            _fetch(java_home, kept)
    return sorted(kept.glob("*.jar"))


def _fetch(java_home: Path, kept: Path) -> None:
    """Let Spark resolve the packages, and move all jars to the cache at once."""
    import pyspark

    spark_home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        nothing = Path(folder) / "nothing.py"
        nothing.write_text("")
        environment = os.environ | {
            "JAVA_HOME": os.fspath(java_home),
            "SPARK_HOME": os.fspath(spark_home),
            # A worker's Python, which `warm_python` makes, runs no program such as the empty one.
            "PYSPARK_PYTHON": sys.executable,
        }
        try:
            done = subprocess.run(
                [
                    os.fspath(spark_home / "bin" / "spark-submit"),
                    f"--packages={DELTA}",
                    f"--exclude-packages={','.join(INCLUDED_IN_SPARK)}",
                    f"--conf=spark.jars.ivy={folder}/ivy",
                    # A Maven repository of this user may hold descriptions without their jars.
                    f"--driver-java-options=-Duser.home={folder}",
                    os.fspath(nothing),
                ],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise JarsUnavailableError(f"no answer within {SECONDS:g} s") from error
        fetched = Path(folder) / "ivy" / "jars"
        if done.returncode or not any(fetched.glob("*delta-spark*.jar")):
            errors = [line.strip() for line in done.stderr.splitlines() if "rror" in line]
            raise JarsUnavailableError(errors[0] if errors else done.stderr[-300:])
        shutil.move(fetched, kept)


def write_trust_store(path: Path) -> bool:
    """Write the authorities that Python trusts as a Java key store; False if none are known.

    The packaged JRE has its own list, which lacks those that only this machine trusts.

    Source: the JKS format, as `sun.security.provider.JavaKeyStore` documents it.
    """
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    trusted_certificate = 2
    store = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        alias = str(number).encode()
        store += struct.pack(">IH", trusted_certificate, len(alias)) + alias
        store += struct.pack(">QH", 0, len(b"X.509")) + b"X.509"
        store += struct.pack(">I", len(certificate)) + certificate
    salted = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    path.write_bytes(store + hashlib.sha1(salted + store).digest())
    return bool(certificates)
