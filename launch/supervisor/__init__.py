"""What runs on the nodes while the job runs. Standard library only, Python 3.9+: any image can run it."""
