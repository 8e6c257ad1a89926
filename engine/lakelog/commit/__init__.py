"""Transactions: what is to be written, whether it may be, and how it becomes the next version.

Pure: ``intent`` (what a transaction stands for), ``conflicts`` (whether it survives a commit that
came first), ``winning_state`` (what that commit's protocol and metadata mean to it).
"""
