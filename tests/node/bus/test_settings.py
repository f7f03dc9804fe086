"""The settings of the bus: secure unless asked, and never misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.settings import BusSettings, load
from holdfast.rules.errors import BadInput


def bus(text: str, tmp_path: Path, **flags: object) -> BusSettings:
    path = tmp_path / "holdfast.toml"
    path.write_text(text)
    return load({"HOLDFAST_CONFIG": str(path)}, flags).bus


def test_B6_a_node_listens_nowhere_and_says_nothing_unless_it_is_asked() -> None:
    found = load({}, {}).bus
    assert found.enabled
    assert found.addresses == []
    assert not found.is_discovering


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ("127.0.0.1:0", ["127.0.0.1:0"]),
        ("0.0.0.0", ["0.0.0.0:7412"]),
        ("::", ["[::]:7412"]),
        ("[::1]:9, box.lan", ["[::1]:9", "box.lan:7412"]),
    ],
)
def test_B6_an_address_without_a_port_has_the_usual_one(given: str, places: list[str]) -> None:
    assert load({}, {"bus_listen": given}).bus.addresses == places


@pytest.mark.parametrize(
    ("listen", "discovery", "discovering"),
    [
        ("127.0.0.1:0", "auto", False),
        ("0.0.0.0:0", "auto", True),
        ("0.0.0.0:0", "off", False),
        ("127.0.0.1:0", "mdns", True),
        ("", "mdns", True),
    ],
)
def test_B6_peers_find_each_other_where_other_machines_can_reach_them(
    listen: str, discovery: str, discovering: bool
) -> None:
    found = load({}, {"bus_listen": listen, "bus_discovery": discovery}).bus
    assert found.is_discovering is discovering


def test_B6_a_flag_goes_before_the_file_and_leaves_the_rest_of_it(tmp_path: Path) -> None:
    text = '[bus]\nlisten = ["0.0.0.0:1"]\npeers = ["bo@10.0.0.2", "bo@10.0.0.3:9"]\n'
    found = bus(text, tmp_path, bus_listen="127.0.0.1:2")
    assert found.addresses == ["127.0.0.1:2"]
    assert found.static_peers == {"bo": ("10.0.0.2:7412", "10.0.0.3:9")}


@pytest.mark.parametrize(
    "text",
    [
        'listen = ["0.0.0.0:99999"]',
        'listen = ["/tmp/x:1"]',
        'discovery = "loud"',
        'peers = ["10.0.0.2:7412"]',
        'peers = ["bo@10.0.0.2:0"]',
        'peers = ["@10.0.0.2:1"]',
        "lisen = []",
        "batch = 1",
    ],
)
def test_B6_bad_settings_of_the_bus_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        bus(f"[bus]\n{text}\n", tmp_path)


def test_B6_a_bad_flag_of_the_bus_is_refused() -> None:
    with pytest.raises(BadInput):
        load({}, {"bus_discovery": "loud"})
