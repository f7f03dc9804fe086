"""A home and its files on a disk: layout, presence, durable replace, blobs, ballast."""
