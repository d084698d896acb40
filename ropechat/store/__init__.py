"""Storage of conversations in SQLite: no message is lost, and deleted data is really removed.

`Store` is the interface and states the guarantees. schema: the tables. writer: the writing thread. queries,
codec: nodes and token records as rows and bytes. process_lock: which program owns an unfinished answer.
repair: damaged files. import_export: to and from files.
"""
