"""The bus of a daemon: its key, its seal, its meshes, and who else may hold it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.node.bus.holder import LOCK
from holdfast.node.settings import BusSettings, Settings
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.ids import id_text
from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Transaction
from support.bus_homes import ANYWHERE, PATIENCE_MS, Homes, trust_of
from support.daemon import ask
from support.waiting import until


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    with Homes(tmp_path, "daemon") as made:
        yield made


def test_B6_a_daemon_takes_up_a_new_key_and_peers_that_know_it_go_on(homes: Homes) -> None:
    ana, bo = homes.pair()
    assert bo.bus.send("ana", "by the old key").state == "delivered"
    trust_of(bo).trust(trust_of(ana).make_next())
    trust_of(ana).switch()
    assert ask(homes.daemons["ana"].unix, "POST", "/v1/refresh").status == 200
    assert ana.bus.status().card == trust_of(ana).card()
    # Port 0 gave the bus another one: people say where it is now.
    trust_of(bo).trust(trust_of(ana).card(), at=ana.bus.status().listening)
    bo.close()
    again = homes.open("bo")
    assert again.bus.send("ana", "by the new one").state == "delivered"
    with ana.bus.subscribe() as messages:
        heard = [messages.take(PATIENCE_MS) for _ in range(2)]
    assert [one.text for one in heard if one] == ["by the old key", "by the new one"]


def test_B4_what_another_process_writes_rings_the_exchange_of_the_daemon(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's own store tells nobody of commits that are not its own."""
    ana, _ = homes.pair()
    host = homes.daemons["ana"].daemon.api.bus
    assert host is not None
    rung: list[int] = []
    monkeypatch.setattr(host.exchange, "ring", lambda: rung.append(1))
    ana.mesh("team", create=True).state.set("k", 1)
    until(lambda: bool(rung))


def test_B7_a_sealed_home_is_served_with_its_key_and_with_no_other(homes: Homes) -> None:
    key, other = homes.folder / "bus.key", homes.folder / "other.key"
    for path, content in ((key, b"k" * 32), (other, b"o" * 32)):
        path.write_bytes(content)
        path.chmod(0o600)
    home = homes.home("ana")

    def sealed_by(path: Path) -> Settings:
        return Settings(bus=BusSettings(listen=[ANYWHERE], seal=f"key-file:{path}"))

    homes.serve("ana", sealed_by(key))
    ana, bo = homes.open("ana"), homes.open("bo")
    trust_of(ana).trust(trust_of(bo).card())
    ask(homes.daemons["ana"].unix, "POST", "/v1/refresh")
    ana.bus.send("bo", "a needle in the outbox", wait_ms=1)
    homes.daemons["ana"].stop()
    ana.close()
    stored = b"".join(path.read_bytes() for path in home.glob("data.db*"))
    assert b"a needle in the outbox" not in stored
    clear = Settings(bus=BusSettings(listen=[ANYWHERE]))
    for settings in (sealed_by(other), sealed_by(homes.folder / "gone.key"), clear):
        # The node is served, and whoever asks for its bus hears why there is none.
        up = homes.serve("ana", settings)
        assert daemon_note(HomePaths(home), LOCK) is None, "nobody holds it after that"
        answer = ask(up.unix, "GET", "/v1/bus/status")
        assert (answer.status, answer.json["error"]["code"]) == (401, "wrong_key")
        assert ask(up.unix, "GET", "/v1/status").status == 200
        up.stop()
    homes.serve("ana", sealed_by(key))
    assert homes.open("ana").bus.status().waiting == 1


def test_B4_what_is_tried_again_by_hand_goes_at_once(homes: Homes) -> None:
    ana, bo = homes.pair()
    sent = ana.bus.send("bo", "not now", wait_ms=1)

    def refuse(tx: Transaction) -> None:
        (row,) = tx.outbox_list(None, (), 0, 9)
        tx.outbox_put(msgspec.structs.replace(row, state="dead", code="message_refused"))

    ana._engine.write("test", refuse)
    with bo.bus.subscribe() as messages:
        bo.bus.ping("ana")
        assert ana.bus.send("bo", "now", wait_ms=PATIENCE_MS).state == "delivered"
        first = messages.take(PATIENCE_MS)  # linked, and nothing else waits
        assert first is not None
        assert first.text == "now"
        place = f"/v1/outbox/{id_text(sent.id)}/retry"
        assert ask(homes.daemons["ana"].unix, "POST", place).status == 200
        message = messages.take(PATIENCE_MS)
        assert message is not None
        assert message.text == "not now"


def test_B2_a_daemon_does_not_start_beside_a_program_that_holds_the_bus(homes: Homes) -> None:
    ana = homes.open("ana")
    ana.bus.bind(listen=ANYWHERE)
    with pytest.raises(AlreadyExists, match="another process with a bus"):
        homes.serve("ana")
    ana.bus.close()
    homes.serve("ana")


def test_B6_a_mesh_without_a_broker_is_joined_and_kept_equal_by_daemons(homes: Homes) -> None:
    ana = homes.listening("ana")
    ana.mesh("team").state.set("build", "green")
    ana.bus.sharing.share("team")
    assert ask(homes.daemons["ana"].unix, "POST", "/v1/refresh").status == 200
    invite = ana.bus.sharing.invite("team", addresses=ana.bus.status().listening)
    bo = homes.stack.enter_context(
        holdfast.open(homes.folder / "bo", peer="bo", create=True, sync="normal")
    )
    assert bo.bus.join(invite.text).mesh == "team"
    until(lambda: bool(bo.mesh("team").state.get("build") == "green"))
    bo.mesh("team").state.set("build", "red")
    until(lambda: bool(ana.mesh("team").state.get("build") == "red"))
