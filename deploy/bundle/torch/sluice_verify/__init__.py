"""The verification kit's checks of torch: deploy/bundle/README.md.

Each check runs in its own process, with the user's own torch:

    python -m sluice_verify CHECK --socket SOCKET --result FILE
"""
