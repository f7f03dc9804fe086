"""Links and addresses of a network namespace, by the kernel's own protocol.

Just enough of rtnetlink for `netns_holder`: machines of ours need no further command for it. It
imports nothing of the project, because a holder starts without it.
"""

from __future__ import annotations

import os
import socket
from ipaddress import ip_interface
from struct import calcsize, pack, unpack_from

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR = 16, 17, 20, 21
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_IFNAME, _MASTER, _LINKINFO, _NET_NS_PID = 3, 10, 18, 19
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_ADDRESS, _LOCAL, _BROADCAST = 1, 2, 4
_UP = 1
_WITHOUT_PROBE = 2
_ERROR = 2
_HEAD = "=IHHII"


def add_bridge(name: str) -> None:
    _tell(_NEWLINK, _CREATE | _EXCL, _link() + _attr(_IFNAME, _text(name)) + _kind("bridge"))


def add_veth(name: str, peer: str, pid: int) -> None:
    """A cable: one end here, the other in the namespace of a process."""
    far = _link() + _attr(_IFNAME, _text(peer)) + _attr(_NET_NS_PID, pack("=I", pid))
    near = _link() + _attr(_IFNAME, _text(name)) + _kind("veth", _attr(_VETH_PEER, far))
    _tell(_NEWLINK, _CREATE | _EXCL, near)


def enslave(name: str, master: str) -> None:
    """Plugs an interface into a bridge."""
    index = pack("=I", socket.if_nametoindex(master))
    _tell(_NEWLINK, 0, _link(name) + _attr(_MASTER, index))


def set_up(name: str, is_up: bool) -> None:
    _tell(_NEWLINK, 0, _link(name, flags=_UP if is_up else 0, change=_UP))


def delete_link(name: str) -> None:
    _tell(_DELLINK, 0, _link(name))


def add_address(name: str, address: str) -> None:
    """`address` is ip/prefix. One of IPv6 can be used at once: no probe is made for it."""
    _tell(_NEWADDR, _CREATE | _EXCL, _address(name, address))


def delete_address(name: str, address: str) -> None:
    _tell(_DELADDR, 0, _address(name, address))


def _address(name: str, address: str) -> bytes:
    place = ip_interface(address)
    is_v4 = place.version == 4
    family = socket.AF_INET if is_v4 else socket.AF_INET6
    flags = 0 if is_v4 else _WITHOUT_PROBE
    head = pack("=BBBBI", family, place.network.prefixlen, flags, 0, socket.if_nametoindex(name))
    body = _attr(_LOCAL, place.ip.packed) + _attr(_ADDRESS, place.ip.packed)
    if is_v4:
        body += _attr(_BROADCAST, place.network.broadcast_address.packed)
    return head + body


def _link(name: str = "", *, flags: int = 0, change: int = 0) -> bytes:
    index = socket.if_nametoindex(name) if name else 0
    return pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, change)


def _kind(kind: str, data: bytes = b"") -> bytes:
    inside = _attr(_INFO_KIND, _text(kind)) + (_attr(_INFO_DATA, data) if data else b"")
    return _attr(_LINKINFO, inside)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _attr(kind: int, payload: bytes) -> bytes:
    size = 4 + len(payload)
    return pack("=HH", size, kind) + payload + b"\0" * (-size % 4)


def _tell(kind: int, flags: int, body: bytes) -> None:
    """Asks the kernel for a change. Raises OSError."""
    size = calcsize(_HEAD) + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as kernel:
        kernel.bind((0, 0))
        kernel.send(pack(_HEAD, size, kind, flags | _REQUEST | _ACK, 1, 0) + body)
        answer = kernel.recv(65536)
    _, what, *_ = unpack_from(_HEAD, answer)
    assert what == _ERROR, f"the kernel answered with a message of kind {what}"
    (code,) = unpack_from("=i", answer, calcsize(_HEAD))
    if code:
        raise OSError(-code, os.strerror(-code))
