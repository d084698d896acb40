"""Chats from the files of other programs: one module per program, all joined by `read`."""
