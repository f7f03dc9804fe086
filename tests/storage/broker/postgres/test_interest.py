"""News go to those who want them, and to those who have not said."""

from __future__ import annotations

from holdfast.storage.broker.postgres.interest import LEAVE, WANT, Interest, words


def test_D14_who_has_not_said_what_it_wants_wants_everything() -> None:
    interest = Interest()
    assert interest.wants("team"), "nobody has looked yet"
    interest.listening(set())
    assert not interest.wants("team"), "nobody else is there"
    interest.begun(7)
    assert interest.wants("team")
    interest.changed(7, [], on=True)
    assert not interest.wants("team")
    interest.changed(7, ["team"], on=True)
    assert interest.wants("team")
    assert not interest.wants("other")
    interest.changed(7, ["team"], on=False)
    assert not interest.wants("team")


def test_D14_a_process_that_begins_anew_or_was_not_heard_has_said_nothing() -> None:
    interest = Interest()
    interest.listening({7})
    interest.changed(7, [], on=True)
    interest.begun(7)
    assert interest.wants("team")
    interest.changed(7, [], on=True)
    interest.forget()
    assert interest.wants("team")


def test_D14_who_is_gone_wants_nothing_and_a_new_one_that_says_nothing_is_noticed() -> None:
    interest = Interest()
    assert interest.listening({7, 8})
    interest.changed(7, [], on=True)
    interest.changed(8, ["team"], on=True)
    assert not interest.listening({7, 8})
    assert not interest.listening({7})
    assert not interest.wants("team")
    assert interest.listening({7, 8}), "the number of one that is gone, taken again"
    assert interest.wants("team")
    interest.changed(9, ["team"], on=True)
    assert not interest.listening({7, 9}), "it has said what it wants"


def test_D14_many_meshes_are_said_in_words_that_postgres_takes() -> None:
    meshes = [f"mesh-{number:040d}" for number in range(1000)]
    said = list(words(WANT, meshes))
    assert max(map(len, said)) < 4100
    assert all(word[0] == WANT for word in said)
    assert [mesh for word in said for mesh in word[1:].split()] == meshes
    assert list(words(WANT, [])) == [WANT], "it says that it wants nothing"
    assert list(words(LEAVE, [])) == []
