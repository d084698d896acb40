"""Conversations in SQLite: nothing that was typed is lost, and what is deleted is gone.

`Store` is the door; its docstring says what is promised. schema: the tables. writer: the thread that writes.
rows, codec: nodes and token records as rows and bytes. owner: which running program an answer belongs to.
repair: damaged files. transfer, page: to and from files.
"""
