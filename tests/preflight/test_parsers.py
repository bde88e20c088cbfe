"""What the systems' tools print, and what RDMA preflight makes of it.

The texts are made up after the tools' formats; names and addresses are invented.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4proto.preflight import parsers
from ds4proto.preflight.facts import Interface
from ds4proto.preflight.gather import gather
from ds4proto.preflight.rdma import judge_rdma


def devinfo(
    *gids: str, state: str = "PORT_ACTIVE (4)", layer: str = "Ethernet",
    name: str = "rxe0", lid: int = 0,
) -> str:  # fmt: skip
    table = "\n".join(f"\t\t\tGID[{n:3d}]:\t\t{gid}" for n, gid in enumerate(gids))
    return f"""hca_id:\t{name}
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t0.0.0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\t{state}
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tport_lid:\t\t{lid}
\t\t\tlink_layer:\t\t{layer}
{table}
\t\tport:\t2
\t\t\tstate:\t\t\tPORT_DOWN (1)
"""


IFCONFIG_MAC = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
\tinet6 ::1 prefixlen 128
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:01
\tinet6 fe80::1c%en0 prefixlen 64 secured scopeid 0xb
\tinet 192.168.68.69 netmask 0xfffffc00 broadcast 192.168.71.255
\tmedia: autoselect
\tstatus: active
en5: flags=8963<UP,BROADCAST,SMART,RUNNING,PROMISC,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:05
\tmedia: autoselect <full-duplex>
\tstatus: inactive
bridge0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 02:00:00:00:00:09
\tinet 169.254.10.1 netmask 0xffff0000 broadcast 169.254.255.255
\tmember: en5 flags=3<LEARNING,DISCOVER>
\tmember: en6 flags=3<LEARNING,DISCOVER>
\tstatus: active
"""
IP_ADDR = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: enp1s0f0np0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq master br0 state UP
    link/ether 02:00:00:00:00:02 brd ff:ff:ff:ff:ff:ff
3: br0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc noqueue state UP group default
    inet 10.0.0.1/24 brd 10.0.0.255 scope global br0
    inet6 fe80::2/64 scope link
4: wlp2s0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN
5: veth1@if4: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP
    inet 172.17.0.1/16 scope global veth1
"""
MAPPED = "::ffff:10.0.0.1, RoCE v2"
LOCAL = "fe80::1, RoCE v2"


def test_devices_and_gids() -> None:
    text = devinfo("fe80::1, RoCE v1", LOCAL, "::ffff:10.0.0.1, RoCE v1", MAPPED)
    (device,) = parsers.parse_ibv_devinfo(text)
    assert (device.name, device.state, device.link_layer) == ("rxe0", "ACTIVE", 2)
    assert device.active_mtu == 3
    assert [str(entry) for entry in device.gids] == [
        "[0] fe80::1 RoCE v1",
        "[1] fe80::1 RoCE v2",
        "[2] 10.0.0.1 RoCE v1",
        "[3] 10.0.0.1 RoCE v2",
    ]
    assert parsers.parse_ibv_devinfo("No IB devices found\n") == []


def test_interfaces_of_macos() -> None:
    found = {one.name: one for one in parsers.parse_ifconfig(IFCONFIG_MAC)}
    assert found["en0"].addresses == ("fe80::1c/64", "192.168.68.69/22")
    assert found["en0"].mtu == 1500
    assert not found["en5"].up
    assert found["bridge0"].kind == "bridge"
    assert found["bridge0"].members == ("en5", "en6")
    assert found["bridge0"].addresses == ("169.254.10.1/16",)
    assert found["lo0"].kind == "loopback"


def test_interfaces_of_linux() -> None:
    found = {one.name: one for one in parsers.parse_ip_addr(IP_ADDR)}
    assert found["br0"].members == ("enp1s0f0np0",)
    assert found["br0"].kind == "bridge"
    assert found["br0"].addresses[0] == "10.0.0.1/24"
    assert (found["wlp2s0"].kind, found["wlp2s0"].up) == ("wifi", False)
    assert found["veth1"].addresses == ("172.17.0.1/16",)
    text = (
        "eth0: flags=4163<UP,BROADCAST>  mtu 1500\n  inet 10.1.0.2  netmask 255.255.0.0"
    )
    assert parsers.parse_ifconfig(text)[0].addresses == ("10.1.0.2/16",)


def test_small_tools() -> None:
    assert parsers.parse_rdma_ctl("enabled\n") is True
    assert parsers.parse_rdma_ctl("RDMA is disabled.\n") is False
    assert parsers.parse_rdma_ctl("command not found") is None
    values = parsers.parse_sysctl(
        "hw.memsize: 137438953472\niogpu.wired_limit_mb = 0\nsysctl: unknown oid 'x'\n"
    )
    assert values["hw.memsize"] == "137438953472"
    assert values["iogpu.wired_limit_mb"] == "0"
    assert parsers.thunderbolt_generation("Speed: Up to 40 Gb/s x1") == 4
    assert parsers.thunderbolt_generation("Up to 40 Gb/s\nUp to 120 Gb/s") == 5
    assert parsers.thunderbolt_generation("") is None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_gives_something_and_raises_nothing(text: str) -> None:
    for prefix in (
        "",
        "hca_id:\tx\n\t\tport:\t1\n",
        "1: a: <UP> ",
        "a: flags=1<UP> mtu 1\n",
    ):
        for parse in (
            parsers.parse_ibv_devinfo, parsers.parse_ifconfig, parsers.parse_ip_addr,
            parsers.parse_rdma_ctl, parsers.parse_sysctl,
            parsers.thunderbolt_generation,
        ):  # fmt: skip
            parse(prefix + text)


DOWN = devinfo(MAPPED, state="PORT_DOWN (1)")


@pytest.mark.parametrize(
    ("library", "text", "verdict", "step"),
    [
        (False, "", "no library", "install the verbs library"),
        (True, "No IB devices found", "no device", "load the driver"),
        (True, DOWN, "port down", "connect the cable"),
        (True, devinfo(LOCAL), "no usable GID", "[0] fe80::1 RoCE v2"),
        (True, devinfo("0000:0000:0000:0000:0000:0000:0000:0000, RoCE v2"),
         "no usable GID", "no GID at all"),
        (True, devinfo(MAPPED), "ready", ""),
    ],
)  # fmt: skip
def test_four_reasons_and_a_step_for_each(
    library: bool, text: str, verdict: str, step: str
) -> None:
    devices = parsers.parse_ibv_devinfo(text)
    system: Any = "macos" if "fe80" in text or "0000" in text else "linux"
    report = judge_rdma(system, library=library, devices=devices, address="10.0.0.1")
    assert report.verdict == verdict
    assert step in report.next_step
    assert bool(report.prints) == (verdict != "ready")


def test_native_infiniband_gets_no_advice_about_addresses() -> None:
    devices = parsers.parse_ibv_devinfo(devinfo("fe80::1", layer="InfiniBand", lid=17))
    report = judge_rdma("linux", library=True, devices=devices, address="10.0.0.1")
    assert report.verdict == "no usable GID"
    assert "native InfiniBand" in report.next_step
    assert "IPv4 address" not in report.next_step


def test_an_address_on_the_bridge_alone_is_named_as_the_cause() -> None:
    devices = parsers.parse_ibv_devinfo(devinfo(LOCAL, name="rdma_en5"))
    report = judge_rdma(
        "macos", library=True, devices=devices, enabled=True, generation=5,
        interfaces=parsers.parse_ifconfig(IFCONFIG_MAC),
    )  # fmt: skip
    assert report.verdict == "no usable GID"
    assert "en5 is a member of bridge0" in report.next_step
    assert "169.254.10.1/16 sits on the bridge alone" in report.next_step


def test_hardware_without_rdma_is_not_sent_to_recovery_mode() -> None:
    four = judge_rdma("macos", library=True, devices=(), enabled=True, generation=4)
    assert four.verdict == "no hardware"
    assert "this hardware has no RDMA" in four.next_step
    assert "recovery" not in four.next_step
    five = judge_rdma("macos", library=True, devices=(), enabled=False, generation=5)
    assert five.verdict == "switched off"
    assert "recovery" in five.next_step
    assert "--transport tcp" in five.next_step


def test_a_gid_outside_the_peers_network_is_pointed_out() -> None:
    devices = parsers.parse_ibv_devinfo(
        devinfo("fe80::1, RoCE v1", LOCAL, "::ffff:10.0.0.1, RoCE v1", MAPPED,
                "::ffff:192.168.5.1, RoCE v2")
    )  # fmt: skip
    report = judge_rdma("linux", library=True, devices=devices, peer="192.168.5.2")
    assert report.gid == "[1] fe80::1 RoCE v2"
    assert any("--rdma-gid-index 4" in line for line in report.advice)
    fits = judge_rdma(
        "linux", library=True, devices=devices, address="192.168.5.1",
        peer="192.168.5.2",
    )  # fmt: skip
    assert fits.gid == "[4] 192.168.5.1 RoCE v2"


@pytest.mark.parametrize("system", ["linux", "macos"])
def test_a_machine_is_gathered_from_its_tools(system: Any) -> None:
    answers = {
        "ip": IP_ADDR, "ifconfig": IFCONFIG_MAC, "ibv_devinfo": devinfo(MAPPED),
        "sysctl": "hw.memsize: 137438953472\niogpu.wired_limit_mb: 100000",
        "nvidia-smi": "143771\n143771\n", "rdma_ctl": "enabled",
    }  # fmt: skip
    found = gather(
        ["./no-such-ds4", "--role", "worker"], name="m", system=system,
        environment={"DS4_TP_TIMEOUT_SEC": "9", "HOME": "/secret"},
        tool=lambda argv: answers.get(argv[0]),
    )  # fmt: skip
    machine = found.machine
    assert machine.env == {"DS4_TP_TIMEOUT_SEC": "9"}
    assert machine.rdma is True
    assert isinstance(machine.interfaces[0], Interface)
    if system == "macos":
        assert machine.memory == 137438953472
        assert machine.wired_limit_mb == 100000
        assert machine.gpus is None
    else:
        assert (machine.gpus, machine.gpu_limit) == (2, 143771 << 20)
        assert machine.backend == "cuda"
    assert any("model" in text for text in found.missing)
