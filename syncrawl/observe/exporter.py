"""/metrics for a monitoring system: the report's figures in Prometheus' text format.

Served on daemon threads, on a loopback address (listen.py). A scrape takes one snapshot, as the
observer does, and holds nobody up (figures.py). Those two import prometheus_client, this module
imports them, and only where `[metrics] listen` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from syncrawl.config.listen import listen_address
from syncrawl.errors import ConfigError
from syncrawl.log import Log, NullLog

if TYPE_CHECKING:
    from syncrawl.observe.listen import Server

# Hosts that are told of one by one: a label value each is what a monitoring system suffers from.
MOST_HOSTS = 200


class Exporter:
    """Answers /metrics on `listen` ("127.0.0.1:9464"; port 0 takes a free one).

    A snapshot that raises is answered with status 500, and logged once until one succeeds.
    """

    def __init__(
        self, listen: str, snapshot: Callable[[], Mapping[str, Any]], *, log: Log | None = None
    ) -> None:
        self._listen = listen
        self._snapshot = snapshot
        self._log = log or NullLog()
        self._server: Server | None = None

    def start(self) -> None:
        """Listen.

        Raises ConfigError where the address cannot be had or is no loopback one, and where
        prometheus_client is not installed.
        """
        host, port = listen_address(self._listen)
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app

            from syncrawl.observe.figures import Figures
            from syncrawl.observe.listen import Server
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "prometheus_client":
                raise
            remedy = 'install prometheus-client, or set "" to do without'
            raise self._refused("needs prometheus_client, which is missing", remedy) from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Figures(self._snapshot, self._log))
        try:
            self._server = Server(host, port, make_wsgi_app(registry))
        except OSError as error:
            reason = f"cannot be listened on ({error.strerror})"
            raise self._refused(reason, 'choose another port, or "" to do without') from error
        except RuntimeError as error:
            # No thread for it: the crawl can do without.
            self._log.warning("metrics not served", listen=self._listen, error=str(error))

    def _refused(self, reason: str, remedy: str) -> ConfigError:
        return ConfigError(reason, key="metrics.listen", value=self._listen, remedy=remedy)

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "not started"
        return self._server.server_port

    def stop(self) -> None:
        """Let go of the address; a scrape under way ends by itself."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __repr__(self) -> str:
        return f"Exporter({self._listen}, {'stopped' if self._server is None else 'listening'})"
