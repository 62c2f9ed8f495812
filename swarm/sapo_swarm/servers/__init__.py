"""What every web server here is built from: a log that strangers cannot fill, few connections, a page for Prometheus."""
