"""The layers that a worker process puts around itself: what it gives up before its first program."""
