"""What a run leaves behind: its directory, the pictures of it, its copies elsewhere."""

from tandem.record.run_record import RunRecord

__all__ = ["RunRecord"]
