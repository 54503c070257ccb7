"""Who deserves what: rewards of rollouts, and advantages within their groups."""
