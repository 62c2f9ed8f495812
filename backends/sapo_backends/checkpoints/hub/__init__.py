"""Models of a hub with Hugging Face's API: what a repository holds, the cache on this disk, downloads that go on."""
