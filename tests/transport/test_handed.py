"""Connections that another process has accepted."""

from __future__ import annotations

import socket

import pytest

from holdfast.transport.handed import HandedSocket, hand_over


def test_D1_a_connection_that_is_handed_over_goes_on_where_it_arrives() -> None:
    ours, theirs = socket.socketpair()
    handed = HandedSocket(theirs.detach())
    with socket.create_server(("127.0.0.1", 0)) as listening, ours, handed:
        for count in (1, 2):
            with socket.create_connection(listening.getsockname()) as client:
                accepted, _ = listening.accept()
                with accepted:
                    assert hand_over(ours, accepted)
                served, address = handed.accept()
                with served:
                    assert address == client.getsockname()
                    served.sendall(b"hello")
                    assert client.recv(5) == b"hello"
            assert handed.taken == count


def test_D1_one_that_is_gone_already_is_served_and_found_gone() -> None:
    ours, theirs = socket.socketpair()
    handed = HandedSocket(theirs.detach())
    mine, its = socket.socketpair()
    with ours, handed:
        assert hand_over(ours, its)
        its.close()
        mine.close()
        served, _ = handed.accept()
        with served:
            assert served.recv(1) == b""


def test_D1_a_process_that_takes_none_refuses_and_one_without_a_parent_raises() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    handed = HandedSocket(theirs.detach())
    mine, its = socket.socketpair()
    with mine, its, handed:
        many = 0
        while hand_over(ours, its):
            many += 1
        assert many > 10
        ours.close()
        for _ in range(many):
            handed.accept()[0].close()
        with pytest.raises(ConnectionAbortedError):
            handed.accept()
        assert not hand_over(ours, its)
