"""What a cluster looks like from its login node. Standard library only, Python 3.9 and later."""
