"""Somebody on the LAN who lies by mDNS. Packets are made by hand: no library would send them.

python -m support.hostile_mdns INTERFACE_IP ATTACK [ARGUMENT …]

names COUNT                      made-up peers, in the form of real ones
foreign COUNT                    names of our service that are not of our form
redirect INSTANCE IP PORT        a peer's name leads elsewhere, and nowhere else
text INSTANCE                    a peer's text record is random bytes
goodbye INSTANCE                 a peer has left
garbage SEED COUNT               broken packets: loops of names, cut records, noise
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from random import Random
from struct import pack

SERVICE = "_holdfast._tcp.local"
GROUP = ("224.0.0.251", 5353)
A, PTR, TXT, SRV = 1, 12, 16, 33
IN, FLUSH = 1, 0x8001
TTL_S = 4500
RECORDS_PER_PACKET = 20


def name(text: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in text.split(".")) + b"\0"


def record(owner: str, kind: int, data: bytes, *, ttl: int = TTL_S, flush: bool = True) -> bytes:
    return name(owner) + pack(">HHIH", kind, FLUSH if flush else IN, ttl, len(data)) + data


def packet(records: list[bytes]) -> bytes:
    return pack(">HHHHHH", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)


def pointer(instance: str, ttl: int = TTL_S) -> bytes:
    return record(SERVICE, PTR, name(f"{instance}.{SERVICE}"), ttl=ttl, flush=False)


def names(count: str) -> Iterator[bytes]:
    yield from _pointers([f"{number:016x}" for number in range(int(count))])


def foreign(count: str) -> Iterator[bytes]:
    yield from _pointers([f"printer \xff {number}" for number in range(int(count))])


def redirect(instance: str, ip: str, port: str) -> Iterator[bytes]:
    host = f"{instance}.local"
    yield packet(
        [
            record(f"{instance}.{SERVICE}", SRV, pack(">HHH", 0, 0, int(port)) + name(host)),
            record(host, A, socket.inet_aton(ip)),
            record(host, A, socket.inet_aton("127.0.0.1"), flush=False),
            record(host, A, socket.inet_aton("8.8.8.8"), flush=False),
        ]
    )


def text(instance: str) -> Iterator[bytes]:
    yield packet([record(f"{instance}.{SERVICE}", TXT, b"\x05v\xff\xfe=\x80\xff\x03")])


def goodbye(instance: str) -> Iterator[bytes]:
    gone = pack(">HHH", 0, 0, 0) + name(f"{instance}.local")
    yield packet([pointer(instance, 0), record(f"{instance}.{SERVICE}", SRV, gone, ttl=0)])


def garbage(seed: str, count: str) -> Iterator[bytes]:
    chance = Random(int(seed))
    head = pack(">HHHHHH", 0, 0x8400, 0, 3, 0, 0)
    to_itself = b"\xc0\x0c" + pack(">HHIH", PTR, IN, TTL_S, 2) + b"\xc0\x0c"
    to_each_other = b"\x01a\xc0\x10\x01b\xc0\x0c" + pack(">HHIH", PTR, IN, TTL_S, 2) + b"\xc0\x10"
    whole = packet([pointer("0" * 16), pointer("1" * 16), pointer("2" * 16)])
    for _ in range(int(count)):
        yield head + to_itself
        yield head + to_each_other
        yield whole[: chance.randrange(len(whole))]
        spoilt = bytearray(whole)
        for _ in range(4):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        yield bytes(spoilt)
        yield chance.randbytes(chance.randrange(1, 600))


def _pointers(instances: list[str]) -> Iterator[bytes]:
    for at in range(0, len(instances), RECORDS_PER_PACKET):
        yield packet([pointer(instance) for instance in instances[at : at + RECORDS_PER_PACKET]])


ATTACKS: dict[str, Callable[..., Iterator[bytes]]] = {
    "names": names,
    "foreign": foreign,
    "redirect": redirect,
    "text": text,
    "goodbye": goodbye,
    "garbage": garbage,
}


def main(interface: str, attack: str, *arguments: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        sender.bind((interface, GROUP[1]))
        for datagram in ATTACKS[attack](*arguments):
            sender.sendto(datagram, GROUP)


if __name__ == "__main__":
    main(*sys.argv[1:])
