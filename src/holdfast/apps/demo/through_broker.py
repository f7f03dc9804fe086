"""A broker between two laptops is killed and comes back: nothing is lost or comes twice."""

from __future__ import annotations

from typing import Final

from holdfast.apps.demo.processes import BrokerProcess
from holdfast.apps.demo.stage import DemoStage

MESH: Final = "plans"
STEPS: Final = 200
_QUESTION: Final = "are you there?"


def play(stage: DemoStage) -> None:
    broker = stage.broker = BrokerProcess(stage.processes, stage.folder / "hub")
    broker.start()
    stage.switch_on("ana", "bob")
    with stage.node("ana") as ana, stage.node("bob") as bob:
        plans = ana.mesh(MESH, create=True)
        for number in range(STEPS):
            plans.state.set(f"step-{number}", f"by ana, {number}")
        done = ana.sharing.publish(MESH, broker=broker.url)
        assert done.invite is not None
        bob.sharing.join(done.invite)
        for node in (ana, bob):
            node.bus.refresh()  # their daemons take it from here
        stage.tell(f"ana publishes a mesh with {done.rows} changes; bob joins by an invite")
        his = bob.mesh(MESH)
        stage.until(lambda: his.counts().get("state") == STEPS, "bob has all steps")

        broker.kill()
        plans.state.set("step-0", "changed by ana meanwhile")
        his.state.set("step-1", "changed by bob meanwhile")
        his.send(_QUESTION, dm="ana", id="question-1")
        his.send(_QUESTION, dm="ana", id="question-1")  # a retry
        stage.tell("the broker is killed with -9; both go on, and bob sends a message, twice")

        broker.start()
        stage.until(
            lambda: (
                (plans.state.get("step-1"), his.state.get("step-0"))
                == ("changed by bob meanwhile", "changed by ana meanwhile")
            ),
            "each has what the other changed",
        )
        stage.until(lambda: list(ana.inbox.list()), "ana has bob's message")
        rows = list(plans.state.list())
        stage.prove(
            [(row.key, row.value) for row in rows]
            == [(row.key, row.value) for row in his.state.list()]
            and len(rows) == STEPS,
            f"it is back; both hold the same {len(rows)} steps",
        )
        texts = [ana.inbox.read(row.id).content.decode() for row in ana.inbox.list()]
        stage.prove(texts == [_QUESTION], f"bob's message is in ana's inbox, once: {_QUESTION}")
