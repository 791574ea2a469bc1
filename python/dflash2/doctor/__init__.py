"""Is a drafter what it should be for its target, and if not, what is wrong with it?"""
