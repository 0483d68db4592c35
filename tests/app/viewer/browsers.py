"""A stand-in for a connected browser."""


class FakeBrowser:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []
        self.notes: list[str] = []

    def send_file_download(self, name: str, content: bytes, save_immediately: bool) -> None:
        assert save_immediately
        self.files.append((name, content[: len(content)]))

    def add_notification(self, title: str, body: str, color: str) -> None:
        self.notes.append(f"{title}: {body}")
