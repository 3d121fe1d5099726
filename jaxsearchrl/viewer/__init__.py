"""The rollout explorer: pages of a run folder, served on this machine or written as files.

What a model or a document wrote is text here and nothing else: `visible` makes it so, and no page runs what it says.
"""
