"""The verification kit's checks of torch: deploy/bundle/README.md.

Each runs in a process of its own, in the user's own torch:

    python -m sluice_verify CHECK --socket SOCKET --result FILE
"""
