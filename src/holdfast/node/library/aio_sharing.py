"""Sharing meshes through a broker, for coroutines: the same verbs, each in a thread."""

from __future__ import annotations

from holdfast.node.library.aio_verbs import AsyncFace, in_thread
from holdfast.node.sharing.sharing import Sharing


class AsyncSharing(AsyncFace[Sharing]):
    """What one node shares, and with whom, for coroutines."""

    publish = in_thread(Sharing.publish)
    join = in_thread(Sharing.join)
    leave = in_thread(Sharing.leave)
    move = in_thread(Sharing.move)
    invite = in_thread(Sharing.invite)
    invites = in_thread(Sharing.invites)
    drop_invite = in_thread(Sharing.drop_invite)
    members = in_thread(Sharing.members)
    known_members = in_thread(Sharing.known_members)
    grant = in_thread(Sharing.grant)
    remove_member = in_thread(Sharing.remove_member)
    declare = in_thread(Sharing.declare)
    destinations = in_thread(Sharing.destinations)
    drop_destination = in_thread(Sharing.drop_destination)
    subscribe = in_thread(Sharing.subscribe)
    unsubscribe = in_thread(Sharing.unsubscribe)
    subscriptions = in_thread(Sharing.subscriptions)
    queues = in_thread(Sharing.queues)
    take = in_thread(Sharing.take)
    settle = in_thread(Sharing.settle)
    dead_letters = in_thread(Sharing.dead_letters)
    revive = in_thread(Sharing.revive)
