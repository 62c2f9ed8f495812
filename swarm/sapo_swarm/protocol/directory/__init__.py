"""Lists of swarms that anybody can host: what such a file is, and how it is fetched."""
