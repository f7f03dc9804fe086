"""A server of S3 as a process of its own, for lakes in an object store.

    with s3_server() as server:
        Lake.open(server.new_place(), create=True, options=server.options)

It checks signatures and keys once `checking_keys` has been entered, and knows one user then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Barrier, Lock, Thread
from typing import Any
from urllib.request import Request, urlopen

RACING = "/racing"
"""Below such a folder the second commit of a table reaches the server twice at the same moment: it
waits for both, so neither job knew of the other when it sent its own."""
CARELESS = "/careless"
"""Below such a folder the server ignores that a file must not be there yet, as old ones do."""
_SECOND = "/_delta_log/00000000000000000001.json"
SECRET = "an-open-secret-of-the-tests"
_NUMBERS = count(1)


@dataclass(frozen=True)
class S3Server:
    """How to reach the server."""

    endpoint: str
    bucket: str = "lakes"
    options: dict[str, str] = field(default_factory=dict)

    def new_place(self, name: str = "lake") -> str:
        """A place that no test has used, by its URI."""
        return f"s3://{self.bucket}/{next(_NUMBERS)}/{name}"

    @contextmanager
    def checking_keys(self) -> Iterator[dict[str, str]]:
        """For the length of the block the server checks keys; gives the options of its user."""
        iam = self._client("iam")
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        name = f"user-{next(_NUMBERS)}"
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        self._check_keys_after("0")
        try:
            yield {
                **self.options,
                "aws_access_key_id": key["AccessKeyId"],
                "aws_secret_access_key": key["SecretAccessKey"],
            }
        finally:
            self._check_keys_after("inf")

    def keys(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin so."""
        found = self._client("s3").list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        assert not found["IsTruncated"]
        return [one["Key"] for one in found.get("Contents", [])]

    def put(self, key: str, content: bytes) -> None:
        self._client("s3").put_object(Bucket=self.bucket, Key=key, Body=content)

    def _check_keys_after(self, requests: str) -> None:
        request = Request(
            f"{self.endpoint}/moto-api/reset-auth",
            data=requests.encode(),
            headers={"Content-Type": "text/plain"},
        )
        with urlopen(request) as answer:
            assert answer.status == 200

    def _client(self, service: str) -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="anybody",
            aws_secret_access_key=SECRET,
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Starts a server with one bucket, and ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.s3_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint.startswith("http"), "the server of S3 did not start"
        options = {
            "aws_endpoint": endpoint,
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
            "aws_access_key_id": "anybody",
            "aws_secret_access_key": SECRET,
        }
        server = S3Server(endpoint, options=options)
        with urlopen(Request(f"{endpoint}/{server.bucket}", method="PUT")):
            pass
        yield server
    finally:
        process.stdin.close()  # the server ends with its standard input
        process.wait(timeout=30)
        process.stdout.close()


def serve() -> None:
    """Serves until standard input is closed, as it is when the tests end, however they end."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)

    together, one_by_one = Barrier(2), Lock()

    def racing(environ: dict[str, Any], start: Any) -> Any:
        path = environ["PATH_INFO"]
        if CARELESS in path:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if RACING not in path or environ["REQUEST_METHOD"] != "PUT" or _SECOND not in path:
            return app(environ, start)
        together.wait(timeout=60)
        with one_by_one:
            return app(environ, start)

    WSGIRequestHandler.log_request = lambda *_: None  # type: ignore[method-assign]
    server = make_server("127.0.0.1", 0, racing, threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve()
