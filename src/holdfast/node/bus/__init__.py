"""The bus of one node: who its peers are, what it keeps, and its meshes shared without a broker.

`directory` says who is who, from the zones that the node trusts.
"""
