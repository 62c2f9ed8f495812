"""Screen 3: all groups of the run, filtered and by pages, and the chosen one in full"""
