"""Requests in, problem details out: authentication, admission, metrics, the API description."""
