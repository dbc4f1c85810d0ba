# /// script
# dependencies = ["radicale==3.9.0", "caldav==3.6.0"]
# [tool.apps]
# application = "Radicale"
# version = "pypi:radicale"
# client = "caldav"
# ///
"""Radicale, and the CalDAV client of PyPI: a calendar with an event, and a guesser who is locked out."""

import datetime

import caldav
from harness import DIR, VENV, Gateway, start


def main():
    gateway = Gateway("registries.md", "Radicale")
    (DIR / "users").write_text("anna:a long password\n")
    (DIR / "radicale.conf").write_text(f"""
[server]
hosts = 127.0.0.1:{gateway.app_port}
[auth]
type = htpasswd
htpasswd_filename = {DIR}/users
htpasswd_encryption = plain
delay = 0
[storage]
filesystem_folder = {DIR}/collections
""")
    start([VENV / "radicale", "--config", DIR / "radicale.conf"], gateway.app_port)

    def login(password):
        return caldav.DAVClient(url=gateway.url, username="anna", password=password).principal()

    # Twenty starts of a program: each asks once without a password, which costs nothing.
    for _ in range(20):
        principal = login("a long password")
    calendar = principal.make_calendar(name="Work")
    noon = datetime.datetime(2030, 1, 2, 12, tzinfo=datetime.timezone.utc)
    calendar.save_event(dtstart=noon, dtend=noon + datetime.timedelta(hours=1), summary="Review")
    day = datetime.timedelta(days=1)
    found = principal.calendars()[0].search(start=noon - day, end=noon + day, event=True)
    assert [event.icalendar_component["summary"] for event in found] == ["Review"], found
    for _ in range(15):
        assert gateway.fetch("/anna/", "PROPFIND")[0] == 401

    statuses = []
    for guess in range(12):
        try:
            login(f"guess {guess}")
        except caldav.lib.error.DAVError as error:
            statuses.append(type(error).__name__)
    assert len(statuses) == 12, statuses
    refused = gateway.log(refused_by="failed-logins", status=429)
    assert refused, statuses
    charged = [line for line in gateway.log(status=401) if line["limit"] == "failed-logins"]
    assert len(charged) == 10, len(charged)
    # The right password waits, too.
    try:
        login("a long password").calendars()
    except caldav.lib.error.RateLimitError as error:
        assert 0 < error.retry_after_seconds <= 900, error.retry_after_seconds
    else:
        raise AssertionError("the address is not locked out")


main()
