"""Marks of logs that outlive the replicas of a test, as the store's do."""

from snapline.storage.disk.store_files import LogMark


class Marks:
    """In memory: durable as soon as it is said."""

    def __init__(self) -> None:
        self.of: dict[str, list[LogMark]] = {}

    def log_marks(self) -> dict[str, list[LogMark]]:
        return {replica: list(marks) for replica, marks in self.of.items()}

    def add_log_mark(self, replica: str, mark: LogMark) -> None:
        self.of.setdefault(replica, []).append(mark)

    def lost(self) -> list[str]:
        """Replicas whose newest log has no vote."""
        return [replica for replica, marks in self.of.items() if not marks[-1].is_voter]
