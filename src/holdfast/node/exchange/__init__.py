"""A home as text, and back: `export` writes JSON lines, `import_rows` reads them.

The lines themselves are declared in `protocol.export_lines`. An import writes through the
operations of `node.core`, as any program does, so the room needs no rules of its own for what is
valid.
"""
