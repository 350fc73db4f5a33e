"""The ranks of a job: groups, the board, deaths, progress."""
