"""The ranks of a job: sequence groups, agreement, failures, progress."""
