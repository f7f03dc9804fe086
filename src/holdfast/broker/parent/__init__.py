"""The parent of the processes of one broker (`supervisor`), and each process as it sees it
(`child`). It stands above the daemon, which the processes run.
"""
