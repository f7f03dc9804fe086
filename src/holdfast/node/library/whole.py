"""What a program that keeps a node open may need at any time, loaded when it opens one.

Much of a node is loaded where it is used, so that a command that writes one key does not pay for
the rest. A program is another matter: it has threads, and it may fork. A child that is born while
another thread is loading a module waits for that module for ever, because the thread that would
have finished it does not exist there. So a program loads here, at once, what any of its calls
might load, but for what brings a conversation with others (bus, quorum, sharing).

A tidy test finds what is missing.
"""

from __future__ import annotations

import rfc8785 as rfc8785

import holdfast.node.core.fold_tasks
import holdfast.node.core.message_count
import holdfast.node.core.read_intents
import holdfast.node.core.runs.plain_arrivals
import holdfast.node.core.streams
import holdfast.node.library.batch
import holdfast.node.library.last_known
import holdfast.node.library.presence
import holdfast.node.library.telemetry
import holdfast.node.settings
import holdfast.node.upkeep.sweep
import holdfast.node.watching.changes
import holdfast.node.watching.watcher_sockets
import holdfast.rules.audit_chain
import holdfast.rules.bus.meshes.coverage
import holdfast.rules.destinations
import holdfast.rules.ledger
import holdfast.rules.outbox
import holdfast.rules.paths
import holdfast.rules.vectors
import holdfast.storage.memory.store
import holdfast.storage.sqlite.committed.column_writes
import holdfast.storage.sqlite.tables.log_facts
import holdfast.storage.sqlite.tables.others
import holdfast.transport.unix_socket  # noqa: F401
