"""Models of the Hugging Face Hub: their names, the cache on this machine, and downloads.

`names`, `cache` and `shelf` read this machine only; `plan`, `partial` and `transfer` reach the Hub
through `client`, the only importer of huggingface_hub.
"""
