"""What turns tokenised pairs into numbers: a model in this process, or a server behind this one."""
