"""The fault proxy passes every byte when it is well, and fails exactly as it is told to."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import pytest

from holdfast.rules.errors import BadInput, Unreachable
from holdfast.transport.fault_proxy import FaultProxy

PATIENCE_S = 60
"""Longer than any machine needs; nothing waits for it to pass."""


class Echo:
    """A server that sends back what it gets, and closes when the other side has ended."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self.got = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with ThreadPoolExecutor(16) as pool:
            while True:
                try:
                    connection, _ = self.listener.accept()
                except OSError:
                    return
                pool.submit(self._answer, connection)

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.got += len(data)
                    connection.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[FaultProxy]:
    with FaultProxy(echo.address) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=PATIENCE_S)


def receive(connection: socket.socket, count: int) -> bytes:
    """So many bytes, or as many as come before the end."""
    got = bytearray()
    while len(got) < count:
        part = connection.recv(count - len(got))
        if not part:
            break
        got += part
    return bytes(got)


def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def test_R2_a_healthy_proxy_passes_every_byte_both_ways(proxy: FaultProxy) -> None:
    data = os.urandom(3_000_000)

    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    with connect(proxy) as connection, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send, connection)
        assert receive(connection, len(data) + 1) == data, "and then the end"
        sent.result()
    traffic = proxy.traffic()
    assert (traffic.connections, traffic.up, traffic.down) == (1, len(data), len(data))
    assert traffic.cuts == 0


def test_R2_many_connections_do_not_mix(proxy: FaultProxy) -> None:
    def one(number: int) -> bool:
        data = bytes([number]) * 100_000
        with connect(proxy) as connection:
            return ask(connection, data) == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


def test_R2_a_cut_breaks_what_is_open_and_lets_new_ones_in(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert ask(first, b"hello") == ask(second, b"hello") == b"hello"
        assert proxy.cut() == 2
        for connection in (first, second):
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    with connect(proxy) as again:
        assert ask(again, b"hello") == b"hello"
    assert proxy.traffic().cuts == 2


def test_R2_refusing_resets_new_ones_and_leaves_open_ones_alone(proxy: FaultProxy) -> None:
    with connect(proxy) as old:
        assert ask(old, b"one") == b"one"
        proxy.refuse()
        with pytest.raises(ConnectionError), connect(proxy) as new:
            new.recv(1)
        assert proxy.wait_for(lambda t: t.refused == 1, PATIENCE_S)
        assert ask(old, b"two") == b"two"
        proxy.refuse(False)
    with connect(proxy) as new:
        assert ask(new, b"three") == b"three"


def test_R2_a_stall_holds_everything_back_and_loses_nothing(proxy: FaultProxy, echo: Echo) -> None:
    with connect(proxy) as connection:
        assert ask(connection, b"before") == b"before"
        proxy.stall()
        connection.sendall(b"meanwhile")
        with connect(proxy) as late:
            late.sendall(b"late")
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            assert echo.got == len(b"before")
            connection.settimeout(PATIENCE_S)
            proxy.stall(False)
            assert receive(connection, 9) == b"meanwhile"
            assert receive(late, 4) == b"late"


def test_R2_a_delay_makes_every_answer_late_and_keeps_the_order(proxy: FaultProxy) -> None:
    proxy.delay(50)
    with connect(proxy) as connection:
        begun = monotonic()
        data = os.urandom(500_000)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(connection.sendall, data)
            assert receive(connection, len(data)) == data
        assert monotonic() - begun >= 0.1, "there and back"


def test_R2_a_throttled_line_passes_so_much_in_a_second(proxy: FaultProxy) -> None:
    proxy.throttle(200_000)
    with connect(proxy) as connection:
        begun = monotonic()
        data = os.urandom(40_000)
        assert ask(connection, data) == data
        assert monotonic() - begun >= 0.2
        proxy.throttle(None)
        assert ask(connection, data * 10) == data * 10


def test_R2_cut_after_lets_exactly_half_an_answer_arrive_once(proxy: FaultProxy) -> None:
    data = os.urandom(10_000)
    proxy.cut_after(5_000)
    with connect(proxy) as connection:
        assert ask(connection, data) == data[:5_000]
    assert proxy.wait_for(lambda t: t.cuts == 1, PATIENCE_S)
    with connect(proxy) as connection:
        assert ask(connection, data) == data, "once"


def test_R2_cut_after_counts_the_way_up_as_well(proxy: FaultProxy, echo: Echo) -> None:
    proxy.cut_after(3, "up")
    with connect(proxy) as connection:
        connection.sendall(b"hello")
        assert proxy.wait_for(lambda t: t.cuts == 1, PATIENCE_S)
    assert proxy.traffic().up == 3


def test_R2_garbage_is_as_long_as_what_was_sent_and_none_of_it(proxy: FaultProxy) -> None:
    data = bytes(range(256))
    with connect(proxy) as connection:
        proxy.garble()
        spoiled = ask(connection, data)
        assert len(spoiled) == len(data)
        assert all(one != other for one, other in zip(spoiled, data, strict=True))
        proxy.heal()
        assert ask(connection, data) == data


def test_R2_a_target_that_is_away_resets_and_one_that_moved_is_found(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[:2]
    with FaultProxy(nobody) as proxy:
        with pytest.raises(ConnectionError), connect(proxy) as connection:
            connection.recv(1)
        proxy.retarget(echo.address)
        with connect(proxy) as connection:
            assert ask(connection, b"hello") == b"hello"


def test_R2_closing_ends_everything_and_frees_the_port(echo: Echo) -> None:
    proxy = FaultProxy(echo.address).start()
    with connect(proxy) as connection:
        assert ask(connection, b"hello") == b"hello"
        proxy.stall()
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(Unreachable):
        proxy.cut()
    host, port = proxy.address
    with FaultProxy(echo.address, host=host, port=port):
        pass
    FaultProxy(echo.address).close()


@pytest.mark.parametrize("wrong", ["delay", "throttle", "cut_after"])
def test_R2_a_fault_that_makes_no_sense_is_refused(proxy: FaultProxy, wrong: str) -> None:
    with pytest.raises(BadInput):
        getattr(proxy, wrong)(-1)
