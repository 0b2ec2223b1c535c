"""An HTTP server on this machine whose answers a test gives."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Status, body and maybe headers for a request, of which the handler knows path, headers and method (`command`).
Answer = Callable[[BaseHTTPRequestHandler], tuple[int, bytes] | tuple[int, bytes, dict[str, str]]]


@contextmanager
def served(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Answer GET, HEAD and POST, with `tls` as HTTPS; the server's host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body, *headers = answer(self)
            self.send_response(status)
            for name, value in (pair for each in headers for pair in each.items()):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        do_HEAD = do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
