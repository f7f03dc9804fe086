"""What is done when something may be lost: backup, restore, diagnosis, repair.

`backup` makes and restores backups (`backup_manifest` is their list of files). `restore_snapshot`
makes a home from a snapshot of a lake. `doctor.diagnose` checks a home; its checks are in
`check_blobs`, `check_fold`, `check_links`, `check_sync` and `check_bus`, and each yields
`checks.Check`. `repair` makes a new database from a damaged one.

All of it works on a home as a whole, through `node.home.exclusive` where no other process may be
there. Reading damaged pages and swapping databases is `storage.sqlite.recovery`.
"""
