"""Tables, pictures and the report of a run folder."""
