"""metrics.listen read once, for the check and for the socket.

Pure. Imports shape (for its error) alone.
"""

from __future__ import annotations

from syncrawl.config.shape import bad

__all__ = ["listen_address"]

_KEY = "metrics.listen"
_EXAMPLE = '"127.0.0.1:9464"'


def listen_address(listen: str) -> tuple[str, int]:
    """The address and port of "127.0.0.1:9464" or "[::1]:9464"; port 0 takes a free one.

    "localhost" is 127.0.0.1, whatever a resolver says. Raises ConfigError for what is no address
    and port, and for what is no loopback address: figures name hosts and URLs' fates, so they are
    for this machine, or for a tunnel to it.
    """
    import ipaddress  # 3 ms that hardly any run needs

    name, colon, port = listen.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not is_number or int(port) > 65535:
        raise bad(_KEY, listen, "is no host:port", f"write it as {_EXAMPLE}")
    bracketed = name.startswith("[") and name.endswith("]")
    if bracketed:
        name = name[1:-1]
    elif name == "localhost":
        name = "127.0.0.1"
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise bad(_KEY, listen, "is no address and port", f"write it as {_EXAMPLE}") from None
    shown = f"[{address}]" if address.version == 6 else str(address)
    if bracketed and address.version == 4:
        raise bad(_KEY, listen, "has IPv4 in brackets", f'write it as "{shown}:{port}"')
    if not bracketed and address.version == 6:
        raise bad(_KEY, listen, "has IPv6 without brackets", f'write it as "{shown}:{port}"')
    if not address.is_loopback:
        remedy = f"listen on {_EXAMPLE} and let an agent or a tunnel fetch from there"
        raise bad(_KEY, listen, "is no loopback address", remedy)
    return str(address), int(port)
