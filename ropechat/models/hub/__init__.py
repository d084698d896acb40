"""Models of the Hugging Face Hub: their names, the cache on this machine, and downloads.

`names`, `cache` and `cached_models` never use the network; `plan`, `partial` and `transfer` use it through
`client`, the only importer of huggingface_hub.
"""
