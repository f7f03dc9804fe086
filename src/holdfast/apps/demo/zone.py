"""A plant behind a line that breaks all the time: all that it measures arrives, once, in order."""

from __future__ import annotations

from typing import Final

from holdfast.apps.demo.processes import LaptopProcess
from holdfast.apps.demo.stage import HERE, DemoStage, trust_of
from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links
from holdfast.transport.fault_proxy import FaultProxy

MESH: Final = "site"
FACTS: Final = 250
_FACT_CHARACTERS: Final = 4_000
EACH_BYTES: Final = 200_000
"""What every connection carries before it breaks."""


def play(stage: DemoStage) -> None:
    with stage.node("plant") as plant:
        site = plant.mesh(MESH, create=True)
        with site.batch() as batch:
            for number in range(FACTS):
                batch.facts.append(f"pump-{number:03}", "curve", "x" * _FACT_CHARACTERS)
    stage.laptop("plant", f"--listen={HERE}")
    stage.switch_on("plant", "ana")
    line = stage.open.enter_context(_line_to(stage.laptop("plant")))
    with stage.node("plant") as plant, stage.node("ana") as ana:
        ana.mesh(MESH, create=True)
        trust_of(plant).trust(trust_of(ana).card(), reads=[MESH])
        trust_of(ana).trust(trust_of(plant).card())
        line.cut_each(EACH_BYTES)
        stage.tell(f"ana pulls {FACTS} facts, on a line that breaks after every {_kb(EACH_BYTES)}")
        url = f"https://127.0.0.1:{line.address[1]}"
        Links(ana._engine, trust_of(ana)).add("plant", url, "plant", meshes=[MESH])
        ana.bus.refresh()
        took_s = stage.until(lambda: len(_facts(ana)) == FACTS, "all facts have come")
        traffic = line.traffic()
        stage.prove(
            _facts(ana) == _facts(plant) and traffic.cuts > 0,
            f"all {FACTS} came once, in order, in {took_s:.1f} s; it broke {traffic.cuts} times",
            f"{len(_facts(ana))} of {len(_facts(plant))}, {traffic.cuts} cuts",
        )
        line.heal()
        line.stall()
        plant.mesh(MESH).facts.append("pump-000", "alarm", "hot")
        stage.tell("the line stands still: the plant goes on writing")
        plant_writes = len(_facts(plant)) == FACTS + 1
        line.heal()
        took_s = stage.until(lambda: len(_facts(ana)) == FACTS + 1, "the alarm has come")
        stage.prove(
            plant_writes, f"it moves again; the alarm is with ana {took_s * 1000:.0f} ms later"
        )


def _line_to(plant: LaptopProcess) -> FaultProxy:
    return FaultProxy(("127.0.0.1", int(plant.url.rpartition(":")[2])))


def _facts(node: Node) -> list[str]:
    return [entry.entity for entry in node.log.range() if entry.mesh == MESH]


def _kb(count: int) -> str:
    return f"{count // 1000} kB"
