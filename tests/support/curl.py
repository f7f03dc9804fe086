"""As much of curl as the pages use, for machines that have none."""

from __future__ import annotations

import argparse
import http.client
import socket
import ssl
import sys
from urllib.parse import urlsplit


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-k", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("--unix-socket")
    parser.add_argument("url")
    asked = parser.parse_args()
    url = urlsplit(asked.url)
    connection: http.client.HTTPConnection
    if asked.unix_socket:
        connection = _Unix(asked.unix_socket)
    else:
        assert url.scheme == "https"
        assert asked.k, "the certificate is self-signed"
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(url.netloc, context=context)
    headers = dict(header.split(": ", 1) for header in asked.H)
    if asked.d is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
    path = url.path + (f"?{url.query}" if url.query else "")
    body = None if asked.d is None else asked.d.encode()
    connection.request("GET" if body is None else "POST", path, body, headers)
    sys.stdout.buffer.write(connection.getresponse().read())


if __name__ == "__main__":
    main()
