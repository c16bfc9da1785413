"""Where /metrics is served: prometheus_client's own WSGI server, held to what a crawl can bear.

Each scrape runs on a daemon thread of its own. Imports prometheus_client at once, so only
exporter.py imports this module, and only where `[metrics] listen` is set.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable
from socketserver import TCPServer
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer

# Seconds a client may keep silent: one that only connects must not keep a thread for ever.
SILENCE = 10.0
# Seconds between two looks of the server's loop; `close` wakes it where that can be done.
POLL = 0.5


class _Handler(WSGIRequestHandler):
    timeout = SILENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not news."""

    def get_stderr(self) -> TextIO:
        # What breaks is logged by the exporter; a traceback would tear the live view.
        return io.StringIO()


class Server(ThreadingWSGIServer):
    """Answers on `host` from the start on, until `close`; OSError where it cannot listen."""

    def __init__(self, host: str, port: int, app: Callable[..., Any]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.set_app(app)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(POLL,), name="metrics", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:
            self.server_close()
            raise

    def server_bind(self) -> None:
        # HTTPServer's asks a resolver for the address's name, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own; where none can be had, hang up."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or that keeps silent, is nobody's business; a bug is."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop listening, at once; a scrape under way is left to its daemon thread."""
        try:
            # Wakes the loop, which otherwise ends at its next look.
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # not everywhere may a listening socket be shut down: then it takes longer
        self.shutdown()
        self.server_close()
