"""What programs get from `import holdfast`: a `Node`, its meshes and their families.

`node` and `families` are for callers that wait. Verbs that write are described once, by what they
prepare (`verbs`). `aio` and `aio_sharing` have the same verbs for coroutines; each is made of its
twin in one line, by the way in which it runs (`aio_verbs`). `conflicts`, `last_known` and
`mesh_status` hold what single verbs need. `documents` reads writes that come as JSON, over HTTP and
from the pipeline's sink: every op that may be written so stands in its table of kinds. What a write
means stands in `node.core`, not here.
"""
