"""The NVIDIA driver. The only importer of pynvml."""
