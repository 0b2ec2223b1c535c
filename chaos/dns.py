"""The laboratory's name server: `python -m chaos.dns ADDRESS NAME=ADDRESS ...` answers A questions for its names."""

from __future__ import annotations

import socket
import struct
import sys


def answer(question: bytes, names: dict[str, str]) -> bytes:
    """The reply to one question (RFC 1035): an address, or that there is none of that kind or name."""
    labels, position = [], 12
    while length := question[position]:
        labels.append(question[position + 1 : position + 1 + length].decode())
        position += 1 + length
    (kind,) = struct.unpack("!H", question[position + 1 : position + 3])
    address = names.get(".".join(labels).lower())
    found = address is not None and kind == 1
    code = 0x8180 if address is not None else 0x8183  # a response; 3: no such name
    head = question[:2] + struct.pack("!HHHHH", code, 1, int(found), 0, 0)
    body = question[12 : position + 5]
    if found:
        assert address is not None
        body += struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)  # valid for one second
    return head + body


def main() -> None:
    names = dict(item.split("=", 1) for item in sys.argv[2:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((sys.argv[1], 53))
        while True:
            question, client = server.recvfrom(512)
            server.sendto(answer(question, names), client)


if __name__ == "__main__":
    main()
