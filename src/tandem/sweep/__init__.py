"""Many runs of one command line, each in a process of its own, and what became of them."""
