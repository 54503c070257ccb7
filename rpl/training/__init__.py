"""How a run of Lightning is put together, recorded and resumed: the CLI class, callbacks and strategies."""
