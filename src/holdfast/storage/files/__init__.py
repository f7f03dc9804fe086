"""Files of a home that are not the database.

`durable` is the one way in which a file gets on the disk; all others use it. `home` knows where
everything lies and mends modes, `presence` which processes have the home open. `blobs` keeps large
content by its hash, with `blob_upload` for content on its way in; `backup_lock` keeps blobs from
being removed while they are copied (`copying`). `ballast` holds room back for a full disk. SQL does
not belong here.
"""
