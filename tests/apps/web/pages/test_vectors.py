"""Vectors in the console: by numbers, and by words where the model is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.apps.web import embedding
from support.console import ConsoleInThread, console_up
from support.daemon import make_home

PAGE = "/meshes/team/vectors"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleInThread]:
    with console_up(make_home(tmp_path_factory.mktemp("vectors") / "home")) as found:
        yield found


def test_U5_a_text_is_stored_and_found_by_its_meaning(console: ConsoleInThread) -> None:
    browser = console.browser()
    for key, text in (("sea", "the ship left the harbour"), ("food", "bread & <b>butter</b>")):
        asked = browser.do("vector.store_text", at=PAGE, mesh="team", key=key, text=text)
        assert f"Store this text under {key}?" in asked.text
        assert f"holdfast vector store {key} --text " in asked.text
        done = browser.done(
            "vector.store_text", at=PAGE, mesh="team", key=key, text=text, sure="yes"
        )
        assert "is found by its meaning now" in done.text
    found = browser.do("vector.search_text", at=PAGE, mesh="team", text="a small boat", model="m")
    assert found.status == 200
    assert found.text.index("the ship left") < found.text.index("bread &amp; &lt;b&gt;butter")
    assert "holdfast vector search --text &#39;a small boat&#39; --mesh team" in found.text
    few = browser.do("vector.search_text", mesh="team", text="a boat", limit="1", model="m")
    assert "bread" not in few.text
    for words in ("", "  "):
        assert browser.do("vector.search_text", at=PAGE, mesh="team", text=words).status == 400


def test_U5_a_token_that_reads_searches_and_stores_nothing(console: ConsoleInThread) -> None:
    reading = console.browser(console.up.daemon.api.trust.add_token("reads", reads=["team"]))
    assert "vector.store_text" not in reading.get(PAGE).text
    assert reading.do("vector.search_text", mesh="team", text="x", model="m").status == 200
    form = {"mesh": "team", "key": "k", "text": "x", "sure": "yes"}
    assert reading.do("vector.store_text", at=PAGE, **form).status == 403


def test_U5_without_the_model_the_page_says_how_words_are_taken(
    console: ConsoleInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "is_there", lambda: False)
    page = console.browser().get(PAGE).text
    assert "vector.search_text" not in page
    monkeypatch.setattr("holdfast.pipeline.minilm.PACKAGE", "no_such_weights")
    from holdfast.pipeline.minilm import is_installed

    assert not is_installed()
