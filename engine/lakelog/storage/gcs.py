"""Google Cloud Storage through gcsfs: ``ifGenerationMatch=0`` on an upload.

gcsfs repeats requests on its own, and the last error says nothing of the attempts before. So an
upload goes to the request under gcsfs's repeating, and `lakelog.storage.conditional` repeats it.

Proved against a double that honours preconditions, not against Google's servers.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lakelog.storage.base import FileEntry
from lakelog.storage.cloud import Names
from lakelog.storage.conditional import (
    BUSY,
    LOST,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Verdict,
    class_names,
    deadline_s,
    judge_status,
)

_CONNECT_S, _READ_S = 10, 20
_MANY = 1000


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options with a time-out where the caller names none: gcsfs has none."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
    return {"requests_timeout": timeout, **options}


class Gcs:
    """Google Cloud Storage; see `lakelog.storage.cloud.Cloud`."""

    @property
    def refusal(self) -> str | None:
        """Gcsfs without the seam that a single attempt needs."""
        import gcsfs

        if not hasattr(gcsfs.GCSFileSystem._request, "__wrapped__"):  # noqa: SLF001 - see the module
            return f"gcsfs {gcsfs.__version__} is not one that lakelog knows to write with"
        return None

    def read_options(self, filesystem: Any) -> dict[str, Any]:  # noqa: ARG002 - as the protocol gives it
        """None: it is one GET."""
        return {}

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """One simple upload, whatever the size."""
        once = type(filesystem)._request.__wrapped__  # noqa: SLF001 - see the module
        url = f"{filesystem._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"  # noqa: SLF001 - as gcsfs spells it
        condition = {"ifGenerationMatch": "0"} if exclusive else {}
        await once(
            filesystem,
            "POST",
            url,
            headers={"Content-Type": "application/octet-stream"},
            data=io.BytesIO(data),  # aiohttp sends large bytes in one blocking go
            uploadType="media",
            name=key,
            **condition,
        )

    def judge(self, error: BaseException) -> Verdict:
        """By what gcsfs makes of the answer; without one, by whether it connected."""
        names = class_names(error)
        if isinstance(error, FileExistsError):
            return TAKEN  # 412
        if isinstance(error, FileNotFoundError):
            return REFUSED  # 404: no such bucket
        if "HttpError" in names:
            code = str(getattr(error, "code", None) or "")
            return judge_status(int(code)) if code.isdigit() else LOST
        if names & {"ClientConnectorError", "GoogleAuthError"}:
            return BUSY  # it never connected, or got no token to send
        if names & {"ClientError", "RequestException", "TimeoutError"}:
            return LOST
        if type(error) is OSError and str(error).startswith("Forbidden"):
            return REFUSED  # 403
        return UNKNOWN

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """Objects: list with ``startOffset``, page by page."""
        names = Names([], [])
        page: dict[str, Any] = {"prefix": prefix, "maxResults": limit or _MANY}
        if limit is None:
            page["delimiter"] = "/"
        if start:
            page["startOffset"] = prefix + start  # inclusive
        while True:
            request = filesystem._call("GET", "b/{}/o", bucket, json_out=True, **page)  # noqa: SLF001 - the async name of `call`
            answer = await asyncio.wait_for(request, deadline_s(0) * 2)
            for item in answer.get("items", ()):
                at = dt.datetime.fromisoformat(item.get("updated") or item["timeCreated"])
                names.files.append(
                    FileEntry(
                        item["name"].removeprefix(prefix),
                        int(item.get("size", 0)),
                        int(at.timestamp() * 1000),
                    )
                )
            for folder in answer.get("prefixes", ()):
                names.folders.append(folder.removeprefix(prefix).rstrip("/"))
            token = answer.get("nextPageToken")
            if not token or (limit is not None and len(names.files) >= limit):
                return names
            page["pageToken"] = token
