"""Recording: accepted episodes of a live engine become a LeRobot dataset."""

from odstream.recording.recorder import EpisodeRecorder, recover_recording

__all__ = ["EpisodeRecorder", "recover_recording"]
