"""What a node says that it is compatible with."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.node.settings import Settings
from holdfast.rules.features import NEEDS
from holdfast.storage.sqlite.migrations import LATEST
from support.daemon import ask, make_home, running


def test_U4_anybody_may_ask_which_versions_a_node_speaks(tmp_path: Path) -> None:
    settings = Settings(tcp="127.0.0.1:0")
    with running(make_home(tmp_path / "home"), settings) as up:
        answer = ask(up.tcp, "GET", "/v1/version")  # without a token
        assert answer.status == 200
        said = answer.json
        assert (said["service"], said["version"]) == ("node", holdfast.__version__)
        assert said["features"] == NEEDS
        home = said["formats"]["home"]
        assert (home["writes"], len(home["reads"])) == (str(LATEST), LATEST)
        for versions in said["formats"].values():
            major = versions["writes"].partition(".")[0]
            assert {versions["writes"], f"{major}.x"} & set(versions["reads"]), "it reads its own"
