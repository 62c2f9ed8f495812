"""A node that starts at login: systemd, launchd, Windows' task scheduler."""
