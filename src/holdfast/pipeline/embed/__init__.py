"""New vectors for old texts.

`reembed.py` embeds what one model has embedded by another model and writes it to a node;
`rounds.py` lets a run that was cut short go on where it was. The model that comes with Holdfast is
`holdfast.pipeline.minilm`.
"""
