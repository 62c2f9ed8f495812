"""A node that starts when the person logs in: systemd, launchd, Windows' task scheduler."""
