"""Every group of a journal, however many: an index beside it, filters, text search, pages"""
