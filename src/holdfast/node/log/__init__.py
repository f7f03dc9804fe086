"""Reading this node's log: consumers, serving others, history, digests, waking waiters."""
