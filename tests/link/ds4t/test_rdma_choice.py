"""Which device, which GID, and advice: tables in, a choice or a verdict out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ds4proto.link.rdma_attributes import RNR_MILLISECONDS, attributes_for
from ds4proto.link.rdma_choice import (
    Choice,
    Device,
    GidEntry,
    NoChoice,
    changed_entry,
    choose_linux,
    choose_macos,
    entry_in_subnet,
    gid_of_address,
    no_library,
    same_subnet,
)
from ds4proto.link.rdma_lint import (
    lint_attributes,
    lint_gid,
    lint_link_layer,
    lint_vector,
)


def mapped(last: int, third: int = 0) -> bytes:
    found = gid_of_address(f"10.99.{third}.{last}")
    assert found is not None
    return found


LOCAL = bytes.fromhex("fe80000000000000021122fffe334455")
ZERO = bytes(16)
V1: Any = "RoCE v1"
V2: Any = "RoCE v2"


def device(name: str, *entries: GidEntry, **more: Any) -> Device:
    return Device(name, more.pop("state", "ACTIVE"), gids=entries, **more)


A = device(
    "rxe0",
    GidEntry(0, LOCAL, V1), GidEntry(1, LOCAL, V2),
    GidEntry(2, mapped(2), V1), GidEntry(3, mapped(2), V2),
)  # fmt: skip
B = device("rxe1", GidEntry(1, mapped(5, 1), V2))


def chosen(found: Choice | NoChoice) -> tuple[str, int]:
    assert isinstance(found, Choice), found
    return found.device.name, found.gid_index


def refused(found: Choice | NoChoice, verdict: str) -> NoChoice:
    assert isinstance(found, NoChoice), found
    assert found.verdict == verdict
    assert found.next_step
    return found


def test_linux_takes_the_gid_of_the_control_address() -> None:
    assert chosen(choose_linux([A, B], "10.99.0.2")) == ("rxe0", 3)
    assert chosen(choose_linux([B, A], "10.99.1.5")) == ("rxe1", 1)
    found = choose_linux([A, B], "10.99.0.2")
    assert isinstance(found, Choice)
    assert found.score == 2


def test_linux_takes_ipv6_control_addresses_too() -> None:
    gid = bytes.fromhex("20010db8000000000000000000000007")
    six = device("mlx5_0", GidEntry(4, gid, V2))
    assert chosen(choose_linux([six, B], "2001:db8::7")) == ("mlx5_0", 4)


def test_linux_does_not_guess_between_ports() -> None:
    text = (
        "tp rdma: multiple active ports, none matches the control address; use the "
        "direct RoCE address for --coordinator, or select --rdma-device and "
        "--rdma-gid-index"
    )
    assert refused(choose_linux([A, B], "127.0.0.1"), "no usable GID").text == text
    assert chosen(choose_linux([A], "127.0.0.1")) == ("rxe0", 1)
    assert chosen(choose_linux([A, B], "127.0.0.1", name="rxe1")) == ("rxe1", 1)


def test_linux_keeps_to_rocev2_and_to_the_index() -> None:
    assert chosen(choose_linux([A], "10.99.0.2", gid_index=1)) == ("rxe0", 1)
    text = (
        "tp rdma: no active RoCEv2 GID for the requested device/index; use the direct "
        "RoCE address for --coordinator, or select --rdma-device and --rdma-gid-index"
    )
    for index in (2, 7, 256):
        found = refused(
            choose_linux([A], "10.99.0.2", gid_index=index), "no usable GID"
        )
        assert found.text == text
        assert f"index {index} was asked for" in found.next_step
    beyond = device("mlx5_0", GidEntry(256, mapped(2), V2), table_length=1024)
    assert refused(choose_linux([beyond], "10.99.0.2"), "no usable GID").text == text


def test_holes_zero_entries_and_torn_tables_are_skipped() -> None:
    torn = device(
        "rxe0",
        GidEntry(0, ZERO, V2), GidEntry(2, b"\0" * 15, V2), GidEntry(5, mapped(2), V2),
        GidEntry(900, mapped(2), V2),
    )  # fmt: skip
    assert chosen(choose_linux([torn], "10.99.0.2")) == ("rxe0", 5)
    assert chosen(choose_linux([torn], "127.0.0.1")) == ("rxe0", 5)
    assert chosen(choose_macos([torn])) == ("rxe0", 5)
    bad = refused(choose_macos([torn], gid_index=0), "no usable GID")
    assert "GID index is zero" in bad.text
    assert torn.entry(1) is None


def test_infiniband_is_not_roce() -> None:
    native = device("ib0", GidEntry(0, mapped(2), "IB"), link_layer=1)
    found = refused(choose_linux([native], "10.99.0.2"), "no usable GID")
    assert "ib0 is native InfiniBand" in found.next_step
    (advice,) = lint_link_layer(native)
    assert "lid" in advice.text
    assert lint_link_layer(A) == []
    assert lint_link_layer(replace(A, link_layer=0))


def test_macos_takes_the_first_active_port_and_its_first_ipv4() -> None:
    down = device("rdma_en1", GidEntry(0, mapped(9)), state="DOWN")
    up = device("rdma_en2", GidEntry(0, LOCAL), GidEntry(2, mapped(2)))
    assert chosen(choose_macos([down, up])) == ("rdma_en2", 2)
    # a device that is named is taken although its port is not active
    assert chosen(choose_macos([down, up], name="rdma_en1")) == ("rdma_en1", 0)
    assert chosen(choose_macos([up], gid_index=0)) == ("rdma_en2", 0)


def test_macos_texts() -> None:
    down = [
        device("rdma_en1", GidEntry(0, mapped(9)), state="DOWN"),
        device("rdma_en2", state="INIT"),
    ]
    assert refused(choose_macos(down), "port down").text == (
        "tp rdma: no device with an active port (rdma_en1=DOWN, rdma_en2=INIT); is the "
        "peer up and rdma_ctl enabled on both machines?"
    )
    bare = device("rdma_en1", GidEntry(0, LOCAL))
    found = refused(choose_macos([bare]), "no usable GID")
    assert found.text == (
        "tp rdma: no IPv4-mapped GID on the active port; give the Thunderbolt "
        "interface its own IPv4 (e.g. sudo ifconfig en1 inet 10.99.0.2/30 alias) on "
        "both machines"
    )
    for index, why in ((7, "not in the table"), (300, "beyond the table")):
        bad = refused(choose_macos([bare], gid_index=index), "no usable GID")
        assert bad.text.startswith(f"tp rdma: query_gid({index}): ")
        assert why in bad.text


def test_four_verdicts_can_be_told_apart() -> None:
    down = replace(A, state="DOWN")
    verdicts = [
        no_library(["libibverbs.so.1"]),
        choose_linux([], "10.99.0.2"),
        choose_linux([down], "10.99.0.2"),
        choose_linux([device("rxe0")], "10.99.0.2"),
    ]
    found = [v.verdict for v in verdicts if isinstance(v, NoChoice)]
    assert found == ["no library", "no device", "port down", "no usable GID"]
    assert "libibverbs.so.1" in str(verdicts[0])
    missing = refused(choose_linux([A], "10.99.0.2", name="rxe9"), "no device")
    assert missing.text == "tp rdma: no verbs devices"
    assert "not among: rxe0" in missing.next_step


def test_subnets() -> None:
    assert same_subnet(mapped(2), mapped(1), 30)
    assert not same_subnet(mapped(2), mapped(5), 30)
    assert not same_subnet(mapped(2), mapped(2, 1), 24)
    assert not same_subnet(LOCAL, mapped(2), 24)
    found = entry_in_subnet(A, mapped(77))
    assert found is not None
    assert found.index == 2
    assert entry_in_subnet(A, mapped(77, 9)) is None


def test_an_entry_that_changed_is_described() -> None:
    before = Choice(A, A.gids[3])
    assert changed_entry(before, A) is None
    moved = device("rxe0", GidEntry(5, mapped(2), V2))
    assert changed_entry(before, moved) == "GID moved from index 3 to 5"
    assert "a hole" in str(changed_entry(before, device("rxe0")))
    other = device("rxe0", GidEntry(3, mapped(8), V2))
    assert changed_entry(before, other) == (
        "index 3 held [3] 10.99.0.2 RoCE v2, and is now [3] 10.99.0.8 RoCE v2"
    )
    assert "zero" in str(changed_entry(before, device("rxe0", GidEntry(3, ZERO))))


def test_the_lint_warns_where_others_hard_code_index_one() -> None:
    (advice,) = lint_gid(Choice(A, A.gids[3]))
    assert "not index 1" in advice.text
    assert "[1] fe80::211:22ff:fe33:4455 RoCE v2" in advice.text
    assert lint_gid(Choice(B, B.gids[0])) == []
    topics = [a.text for a in lint_gid(Choice(A, A.gids[2]))]
    assert any("is RoCE v1" in t for t in topics)
    assert any("link-local" in a.text for a in lint_gid(Choice(A, A.gids[1])))


def test_attributes_that_fail_later() -> None:
    rc = attributes_for("v14", "linux")
    assert lint_attributes(rc, 0.75) == []
    assert RNR_MILLISECONDS[12] == 0.64
    (zero,) = lint_attributes(replace(rc, min_rnr_timer=0), 0.75)
    assert "655.36 ms" in zero.text
    (seven,) = lint_attributes(replace(rc, rnr_retry=7), 0.75)
    assert "without end" in seven.text
    (long,) = lint_attributes(replace(rc, timeout=18), 0.75)
    assert "4.29 s" in long.text
    (never,) = lint_attributes(replace(rc, timeout=0), 0.75)
    assert "without limit" in never.text
    assert lint_attributes(attributes_for("v14", "macos"), 0.75) == []


def test_vectors_and_mtu() -> None:
    assert lint_vector(4096, A) == []
    assert "32772" in lint_vector(8193, A)[0].text
    assert "MTU of 512" in lint_vector(4096, replace(A, active_mtu=2))[0].text
