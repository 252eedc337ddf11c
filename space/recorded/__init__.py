"""Recorded spaces: what somebody tried and what became of it, to search again without a GPU."""

from gemmtune.space.recorded.files import FORMATS as FORMATS
from gemmtune.space.recorded.files import read_recording as read_recording
from gemmtune.space.recorded.files import write_recording as write_recording
from gemmtune.space.recorded.model import Recorded as Recorded
from gemmtune.space.recorded.model import Recording as Recording
from gemmtune.space.recorded.space import RecordedSpace as RecordedSpace
