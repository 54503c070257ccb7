"""The parent's side of the sandbox: processes, their pool, and one session a program."""
