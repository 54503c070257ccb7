"""The schedule: phases of RL, harvest, SFT and evaluation over one run folder, resumable at any point."""

from rpl.schedule.run import cycle

__all__ = ["cycle"]
