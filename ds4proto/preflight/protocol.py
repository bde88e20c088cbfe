"""Our own small protocol between two preflights: JSON messages, then plain bytes.

Version 1. A message is a 4-byte big-endian length and that many bytes of JSON, at most
4 MiB. The host sends ``challenge`` with its version and a nonce; the joiner answers
with its version and the HMAC-SHA256 of the nonce under the code that a person carried
over, so that the code itself never crosses the wire. After ``welcome`` the joiner
sends ``facts``; the host then gives orders (``echo``, ``take``, ``give``, ``both``),
each followed by the bytes that it names, and ends with ``report``. Two joiners
measure between them on ``open`` (answered ``opened`` with a port) and ``meet``: the
second dials the first, proves a secret in the same way and plays the host there. Both
answer ``met``, or ``failed`` with a reason.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any, Final

import msgspec

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.peer import SYSTEM_CLOCK, SocketChannel

__all__ = [
    "PROTOCOL_VERSION",
    "JoinError",
    "answer_challenge",
    "challenge",
    "new_code",
    "receive",
    "send",
]

PROTOCOL_VERSION: Final = 1
_MOST: Final = 4 << 20
_LETTERS: Final = "abcdefghjkmnpqrstuvwxyz23456789"
"""Without letters that a person confuses."""
_CODE: Final = 8
MESSAGE_S: Final = 30.0


class JoinError(Ds4ProtoError):
    """The two sides do not come together: version, code, or no preflight at all."""

    exit_code = ExitCode.FAILED


def new_code() -> str:
    """Return a one-time code for a person to carry over."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_CODE))


def _proof(code: str, nonce: str) -> str:
    key = code.strip().lower().encode()
    return hmac.new(key, nonce.encode(), hashlib.sha256).hexdigest()


def send(channel: SocketChannel, kind: str, **values: Any) -> None:
    """Send one message.

    Raises
    ------
    PeerLost
    """
    body = msgspec.json.encode({"type": kind, **values})
    deadline = SYSTEM_CLOCK.now() + MESSAGE_S
    channel.send([len(body).to_bytes(4, "big"), body], deadline=deadline)


def receive(
    channel: SocketChannel, *kinds: str, wait: float = MESSAGE_S
) -> dict[str, Any]:
    """Return the next message, which must be one of ``kinds``.

    Raises
    ------
    JoinError
        For anything that is no message of this protocol, or another one than due.
    PeerLost
    """
    deadline = SYSTEM_CLOCK.now() + wait
    head = bytearray(4)
    channel.phase = f"waiting for {' or '.join(kinds)}"
    channel.recv_exact(head, deadline=deadline)
    size = int.from_bytes(head, "big")
    if size > _MOST:
        raise JoinError(
            f"the other side is no preflight of ours: expected a message of at most "
            f"{_MOST} bytes, found a length of {size} (first bytes {head.hex()}). "
            "Next: check the address and the port"
        )
    body = bytearray(size)
    channel.recv_exact(body, deadline=deadline)
    try:
        message = msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = {}
    kind = message.get("type")
    if kind == "refused" and "refused" not in kinds:
        raise JoinError(str(message.get("reason", "refused without a reason")))
    if kind not in kinds:
        raise JoinError(
            f"expected the message {' or '.join(kinds)}, found {kind!r}. Next: use "
            "one version of ds4proto on both machines"
        )
    return message


def challenge(channel: SocketChannel, code: str) -> bool:
    """Let a joiner prove that it knows the code; False where it does not.

    Raises
    ------
    JoinError
        For another version.
    PeerLost
    """
    nonce = secrets.token_hex(16)
    send(channel, "challenge", version=PROTOCOL_VERSION, nonce=nonce)
    answer = receive(channel, "answer")
    if answer.get("version") != PROTOCOL_VERSION:
        reason = _versions(answer.get("version"))
        send(channel, "refused", reason=reason)
        raise JoinError(reason)
    proof = str(answer.get("proof", ""))
    if not hmac.compare_digest(proof, _proof(code, nonce)):
        send(
            channel,
            "refused",
            reason="the code is wrong. Next: type the one that the first machine shows",
        )
        return False
    send(channel, "welcome")
    return True


def _versions(found: object) -> str:
    return (
        f"the preflights speak versions {PROTOCOL_VERSION} (host) and {found} "
        "(joiner). Next: install one release of ds4proto on both machines"
    )


def answer_challenge(channel: SocketChannel, code: str) -> None:
    """Prove to a host that the code is known.

    Raises
    ------
    JoinError, PeerLost
    """
    first = receive(channel, "challenge")
    nonce = str(first.get("nonce", ""))
    proof = _proof(code, nonce)
    send(channel, "answer", version=PROTOCOL_VERSION, proof=proof)
    receive(channel, "welcome")
