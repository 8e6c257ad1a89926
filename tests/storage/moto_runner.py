"""moto's S3 behind a lock: ``moto_runner.py PORT``.

moto answers a conditional PUT with a check and then a write, so two simultaneous requests can both
win. One request at a time makes its exclusive create correct; its other errors remain.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Http11Handler(WSGIRequestHandler):
    """Keeps connections open, as every real store does."""

    protocol_version = "HTTP/1.1"


def one_at_a_time(app: Wsgi) -> Wsgi:
    lock = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return locked


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    make_server(
        "127.0.0.1",
        int(sys.argv[1]),
        one_at_a_time(create_backend_app("s3").wsgi_app),
        threaded=True,
        request_handler=Http11Handler,
    ).serve_forever()


if __name__ == "__main__":
    main()
